// NEON with products of eight-bit and dot products of bfloat16 numbers: ARM's servers since 2022 (Graviton 3, Grace).
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_neon_i8mm, "neon-i8mm", "BFDOT")
