// A vector of floats as wide as the instruction set has, and the few functions the kernels are written in.
//
// GCC's and Clang's vector extensions give + - * / and comparisons on `F`; the rest is here, with an intrinsic where
// the compilers do not find the instruction by themselves. Everything is `static`: each instruction set's copy stays
// in its own file.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(WIDTH)  // chosen by the file that includes this
#elif defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX2__)
#define WIDTH 8
#else
#define WIDTH 4
#endif

typedef float F __attribute__((vector_size(WIDTH * 4)));
typedef int32_t I __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t U __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t H __attribute__((vector_size(WIDTH * 2)));
typedef int16_t S __attribute__((vector_size(WIDTH * 2)));

#define INLINE static inline __attribute__((always_inline))

INLINE F load(const float *p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store(float *p, F v) { std::memcpy(p, &v, sizeof v); }
INLINE F splat(float x) {
#if defined(__AVX512F__)
    return (F)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (F)_mm256_set1_ps(x);
#else
    return F{} + x;
#endif
}
INLINE I splat_int(int32_t x) { return I{} + x; }
INLINE I bits(F v) { return (I)v; }
INLINE F from_bits(I v) { return (F)v; }
INLINE F to_float(I v) { return __builtin_convertvector(v, F); }

// The nearest bfloat16, in the upper half of each lane: the first 16 bits of a float32, ties to even.
INLINE U upper_half(F v) {
    const U u = (U)v;
    return (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000;
}
INLINE uint16_t half_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
INLINE float rounded_to_half(float x) {
    const uint32_t u = (uint32_t)half_of(x) << 16;
    std::memcpy(&x, &u, 4);
    return x;
}
// WIDTH numbers as bfloat16 in 16 bits each.
INLINE void store_half(uint16_t *p, F v) {
#if defined(__AVX512BF16__)
    const __m256bh h = _mm512_cvtneps_pbh((__m512)v);
    std::memcpy(p, &h, sizeof h);
#else
    const H h = __builtin_convertvector(upper_half(v) >> 16, H);
    std::memcpy(p, &h, sizeof h);
#endif
}

INLINE F largest(F a, F b) {
#if defined(__AVX512F__)
    return (F)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (F)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}
INLINE F smallest(F a, F b) {
#if defined(__AVX512F__)
    return (F)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (F)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}

// a·b + c in one rounding where the machine can.
INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

// 1/v to float's last bit or so, without the division unit: an estimate and one step of Newton's.
INLINE F reciprocal(F v) {
#if defined(__AVX512F__)
    const F guess = (F)_mm512_rcp14_ps((__m512)v);
    return guess * fma(-v, guess, splat(2.f));
#else
    return splat(1.f) / v;
#endif
}

// Sums in a fixed order, so that the same numbers always give the same answer.
INLINE float sum(F v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float x[WIDTH];
    store(x, v);
    for (int width = WIDTH / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
#endif
}
INLINE float maximum(F v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float x[WIDTH];
    store(x, v);
    for (int i = 1; i < WIDTH; i++) x[0] = x[i] > x[0] ? x[i] : x[0];
    return x[0];
#endif
}
// The first `count` lanes of `v`, `other` in the rest.
INLINE F first_lanes(F v, int count, F other) {
    I lane;
    for (int i = 0; i < WIDTH; i++) lane[i] = i;
    return lane < splat_int(count) ? v : other;
}
INLINE float minimum(F v) { return -maximum(-v); }

// To the nearest whole number, for |v| < 2²²; adding 1.5·2²³ leaves the integer in the low bits.
INLINE F nearest(F v, I *whole) {
    const F magic = splat(12582912.f);
    F shifted = v + magic;
    *whole = bits(shifted) - bits(magic);
    return shifted - magic;
}

// A number in two: what is left of it, in [−½, ½], and the whole number nearest to it, which becomes an exponent.
#if defined(__AVX512F__)
typedef F Whole;
INLINE F rest_of(F t, Whole *whole) {
    *whole = (F)_mm512_roundscale_ps((__m512)t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return t - *whole;
}
INLINE F times_power(F p, Whole whole) { return (F)_mm512_scalef_ps((__m512)p, (__m512)whole); }
#else
typedef I Whole;
INLINE F rest_of(F t, Whole *whole) { return t - nearest(t, whole); }
INLINE F times_power(F p, Whole whole) { return p * from_bits((whole + 127) << 23); }
#endif

// 2^t for t ≤ 127: the integer part goes into the exponent, Taylor's series of 2^f covers f in [−½, ½] (error 5e-9).
INLINE F exp2_of(F t) {
    Whole whole;
    const F f = rest_of(largest(t, splat(-126.f)), &whole);
    F p = splat(1.5252734e-5f);
    p = fma(p, f, splat(1.5403530e-4f));
    p = fma(p, f, splat(1.3333558e-3f));
    p = fma(p, f, splat(9.6181291e-3f));
    p = fma(p, f, splat(5.5504109e-2f));
    p = fma(p, f, splat(2.4022651e-1f));
    p = fma(p, f, splat(6.9314718e-1f));
    p = fma(p, f, splat(1.f));
    return times_power(p, whole);
}
// The same to 8e-5 of itself, for what is rounded to bfloat16 next.
INLINE F exp2_coarse(F t) {
    Whole whole;
    const F f = rest_of(largest(t, splat(-126.f)), &whole);
    F p = splat(0.055171669f);
    p = fma(p, f, splat(0.24261113f));
    p = fma(p, f, splat(0.69326097f));
    p = fma(p, f, splat(0.99992806f));
    return times_power(p, whole);
}
