// AVX2 with FMA: nearly every x86 processor since 2013.
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_avx2, "avx2", nullptr)
