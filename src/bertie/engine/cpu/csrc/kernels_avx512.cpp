// AVX-512 with eight-bit dot products (VNNI): server processors since 2019, desktop ones since 2022.
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_avx512, "avx512-vnni", nullptr)
