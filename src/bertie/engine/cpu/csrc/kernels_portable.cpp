// Whatever the compiler makes of four floats side by side: NEON on ARM, SSE2 on old x86.
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_portable, "portable", nullptr)
