// The steps of kernels_amx.cpp by plain loops, for tests of its answers on any processor (BERTIE_CPU=tiles).
#define BERTIE_TILES
#define WIDTH 16
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_tiles, "tiles", "plain loops")
