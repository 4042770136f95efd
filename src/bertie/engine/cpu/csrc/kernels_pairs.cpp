// The steps of kernels_avx512_bf16.cpp by plain loops, for tests of its answers on any processor (BERTIE_CPU=pairs).
#define BERTIE_PAIRS
#define WIDTH 16
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_pairs, "pairs", "plain loops")
