// Which instruction set's kernels this processor runs.

#include <cstdlib>
#include <string>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "kernels.h"

#if defined(__x86_64__)
// What the seventh page of cpuid says, second part in EDX, or of its subpage 1 in EAX; 0 where there is none.
static unsigned features(unsigned subpage) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (subpage == 0) return d;
    return a >= subpage && __get_cpuid_count(7, subpage, &a, &b, &c, &d) ? a : 0;
}

// Whether the processor has AMX for eight bits and bfloat16, and the system lets this process use it (Linux wants to be
// asked).
static bool may_use_amx() {
#if defined(__linux__)
    constexpr unsigned BF16 = 1u << 22, TILE = 1u << 24, INT8 = 1u << 25;
    if (~features(0) & (BF16 | TILE | INT8)) return false;
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
    if (name == "pairs") return &kernels_pairs;
    if (name == "portable") return &kernels_portable;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni") && name != "avx2";
#if !defined(BERTIE_NO_BF16)
    const bool bf16 = avx512 && (features(1) & 1u << 5) && name != "avx512-vnni";
#if !defined(BERTIE_NO_AMX)
    static const bool amx = may_use_amx();
    if (bf16 && amx && name != "avx512-bf16") return &kernels_amx;
#endif
    if (bf16) return &kernels_avx512_bf16;
#endif
    if (avx512) return &kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kernels_avx2;
#elif defined(__aarch64__) && defined(__APPLE__)
    return &kernels_neon_dotprod;  // every Mac with an ARM processor has it
#elif defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long DOT_PRODUCTS = 1ul << 20;                          // HWCAP_ASIMDDP
#if !defined(BERTIE_NO_I8MM)
    constexpr unsigned long MATRICES = 1ul << 13, BFLOAT16_DOTS = 1ul << 14;  // HWCAP2_I8MM, HWCAP2_BF16
    const bool both = !(~getauxval(AT_HWCAP2) & (MATRICES | BFLOAT16_DOTS));
    if (both && name != "neon-dotprod") return &kernels_neon_i8mm;
#endif
    if (getauxval(AT_HWCAP) & DOT_PRODUCTS) return &kernels_neon_dotprod;
#endif
    return &kernels_portable;
}
