// NEON with eight-bit dot products: ARM's servers since 2019 (Graviton 2, Ampere Altra), Apple's processors since 2020.
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_neon_dotprod, "neon-dotprod", nullptr)
