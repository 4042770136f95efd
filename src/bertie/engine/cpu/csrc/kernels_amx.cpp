// 512-bit vectors, and AMX for eight-bit products: Intel's servers since 2023.
#define BERTIE_TILES
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_amx, "amx")
