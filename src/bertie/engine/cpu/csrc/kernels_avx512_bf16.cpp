// The same with dot products of bfloat16 (AVX512-BF16): AMD's since 2022 (Zen 4), some of Intel's servers since 2020.
#include <type_traits>
#include "kernels.inl"
KERNELS(kernels_avx512_bf16, "avx512-bf16", "AVX512-BF16")
