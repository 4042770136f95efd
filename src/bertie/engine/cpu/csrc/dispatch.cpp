// Which instruction set's kernels this processor runs.

#include <cstdlib>
#include <string>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels.h"

#if defined(__x86_64__)
// Whether the processor has AMX for eight bits and the system lets this process use it (Linux wants to be asked).
static bool may_use_amx() {
#if defined(__linux__) && !defined(BERTIE_NO_AMX)
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    constexpr unsigned AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;
    if (!(d & AMX_TILE) || !(d & AMX_INT8)) return false;
    constexpr int ASK_FOR_STATE = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
#else
    return false;
#endif
}
#endif

const Kernels *best_kernels() {
    const char *asked = std::getenv("BERTIE_CPU");
    const std::string name = asked ? asked : "";
    if (name == "tiles") return &kernels_tiles;
    if (name == "portable") return &kernels_portable;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if !defined(BERTIE_NO_AMX)
    static const bool amx = may_use_amx();
    if (avx512 && amx && name != "avx512-vnni" && name != "avx2") return &kernels_amx;
#endif
    if (avx512 && name != "avx2") return &kernels_avx512;
    if (avx2) return &kernels_avx2;
#endif
    return &kernels_portable;
}
