// 512-bit vectors, and AMX for products in eight bits and in bfloat16: Intel's servers since 2023.
#define BERTIE_TILES
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_amx, "amx", "AMX-BF16")
