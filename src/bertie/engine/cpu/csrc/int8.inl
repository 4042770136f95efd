// Eight-bit products: sums are whole numbers, so that every unit gives the same bits.
//
// A[rows, K] is row-major; B is [K / GROUP][columns][GROUP].

INLINE I dot(I sums, I a, I b) {
#if defined(__AVX512VNNI__)
    return (I)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sums + (I)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return sums + (I)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__ARM_FEATURE_DOTPROD)
    return (I)vdotq_s32((int32x4_t)sums, (int8x16_t)a, (int8x16_t)b);
#elif defined(BERTIE_TILES) || defined(BERTIE_PAIRS)
    // four to a lane, low one first; those of `a` have no sign
    for (int shift = 0; shift < 32; shift += 8) sums += ((a >> shift) & 255) * ((b << (24 - shift)) >> 24);
    return sums;
#else
    // two int16 to a lane, low one first
    const I low = ((a << 16) >> 16) * ((b << 16) >> 16), high = (a >> 16) * (b >> 16);
    return sums + low + high;
#endif
}

// What a sum of eight-bit products stands for.
INLINE F from_int8(I sum, float scale, float zero, const float *column_scale, const float *column_sum,
                   const float *bias) {
    F whole = to_float(sum);
    if (GROUP != 2) whole = fma(load(column_sum), splat(-zero), whole);
    return fma(whole, load(column_scale) * splat(scale), load(bias));
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// By squares of two rows and two columns, eight k's at a step.
template <int M, int NV>
void product_int8(int groups, const Quantum *A, long lda, const Weight *B, const float *scale, const float *zero,
                  const float *column_scale, const float *column_sum, const float *bias, float *C, long ldc) {
    constexpr int PAIRS = (M + 1) / 2, SQUARES = NV * WIDTH / 2;
    int32x4_t sums[PAIRS][SQUARES];
#pragma GCC unroll 3
    for (int p = 0; p < PAIRS; p++)
#pragma GCC unroll 8
        for (int s = 0; s < SQUARES; s++) sums[p][s] = vdupq_n_s32(0);
    for (int g = 0; g < groups; g++) {
        uint8x16_t a[PAIRS];
#pragma GCC unroll 3
        for (int p = 0; p < PAIRS; p++) {
            const Quantum *first = A + 2 * p * lda + g * GROUP, *second = 2 * p + 1 < M ? first + lda : first;
            a[p] = vcombine_u8(vld1_u8(first), vld1_u8(second));
        }
#pragma GCC unroll 8
        for (int s = 0; s < SQUARES; s++) {
            const int8x16_t b = vld1q_s8(B + ((long)g * NV * WIDTH + 2 * s) * GROUP);
#pragma GCC unroll 3
            for (int p = 0; p < PAIRS; p++) sums[p][s] = vusmmlaq_s32(sums[p][s], a[p], b);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++)
#pragma GCC unroll 6
        for (int r = 0; r < M; r++) {
            const int64x2_t left = vreinterpretq_s64_s32(sums[r / 2][2 * v]);
            const int64x2_t right = vreinterpretq_s64_s32(sums[r / 2][2 * v + 1]);
            const I sum = (I)(r % 2 ? vzip2q_s64(left, right) : vzip1q_s64(left, right));
            store(C + r * ldc + v * WIDTH, from_int8(sum, scale[r], zero[r], column_scale + v * WIDTH,
                                                     column_sum + v * WIDTH, bias + v * WIDTH));
        }
}
#else
template <int M, int NV>
void product_int8(int groups, const Quantum *A, long lda, const Weight *B, const float *scale, const float *zero,
                  const float *column_scale, const float *column_sum, const float *bias, float *C, long ldc) {
    I sums[M][NV];
#pragma GCC unroll 6
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) sums[r][v] = I{};
    for (int g = 0; g < groups; g++) {
        I b[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) std::memcpy(&b[v], B + (long)(g * NV + v) * WIDTH * GROUP, sizeof(I));
#pragma GCC unroll 6
        for (int r = 0; r < M; r++) {
            int32_t lane;
            std::memcpy(&lane, A + r * lda + g * GROUP, 4);
            const I a = splat_int(lane);
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) sums[r][v] = dot(sums[r][v], a, b[v]);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++)
#pragma GCC unroll 6
        for (int r = 0; r < M; r++)
            store(C + r * ldc + v * WIDTH, from_int8(sums[r][v], scale[r], zero[r], column_scale + v * WIDTH,
                                                     column_sum + v * WIDTH, bias + v * WIDTH));
}

#endif

using ProductInt8 = void (*)(int, const Quantum *, long, const Weight *, const float *, const float *, const float *,
                             const float *, const float *, float *, long);

template <int M>
ProductInt8 product_int8_of(int vectors) {
    switch (vectors) {
        case 1: return product_int8<M, 1>;
        case 2: return product_int8<M, 2>;
        case 3: return product_int8<M, 3>;
        default: return product_int8<M, 4>;
    }
}
ProductInt8 choose_product_int8(int rows, int vectors) {
    switch (rows) {
        case 1: return product_int8_of<1>(vectors);
        case 2: return product_int8_of<2>(vectors);
        case 3: return product_int8_of<3>(vectors);
        case 4: return product_int8_of<4>(vectors);
        case 5: return product_int8_of<5>(vectors);
        default: return product_int8_of<6>(vectors);
    }
}
