// bfloat16 products: two k's to a 32-bit lane, sums in float32.
//
// A[rows, depth] is row-major; B is [depth / 2][columns][2], which a vector unit reads a line at a time and a matrix unit
// 16 lines at a time. A sum's order depends on neither rows nor columns beside it. AMX adds even and odd k's apart, 32 at
// a step, so its answers differ from the vector unit's in the last bits, and all of a model's rows go through it.

#if defined(BERTIE_TILES)
constexpr int HALF_ROWS = 2 * SQUARE;  // rows to a block

// C[rows, columns] = A · B for rows ≤ HALF_ROWS. Whole squares are read and written: C has room for HALF_ROWS, and what
// follows `depth` in A and B, up to depth_of(depth), is zero.
void half_product(int rows, int depth, const Half *A, long lda, const Half *B, int columns, float *C, long ldc) {
    const int steps = depth_of(depth) / 32;
    const long a = lda * (long)sizeof(Half), b = columns * 4L, c = ldc * (long)sizeof(float);
    for (int n = 0; n < columns; n += 2 * SQUARE) {
        const Half *from = B + 2 * n;
        if (n + SQUARE < columns)
            (rows > SQUARE ? squares<2, 2, true> : squares<1, 2, true>)(steps, A, a, from, b, C + n, c);
        else
            (rows > SQUARE ? squares<2, 1, true> : squares<1, 1, true>)(steps, A, a, from, b, C + n, c);
    }
}
#else
constexpr int HALF_ROWS = 8 * ROWS;

INLINE F dot_half(F sums, I a, I b) {
#if defined(__AVX512BF16__)
    return (F)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return (F)vbfdotq_f32((float32x4_t)sums, vreinterpretq_bf16_s32((int32x4_t)a), vreinterpretq_bf16_s32((int32x4_t)b));
#else
    const F odd = fma((F)(a & ~0xffff), (F)(b & ~0xffff), sums);
    return fma((F)(a << 16), (F)(b << 16), odd);
#endif
}

template <int M, int NV>
void half_product_of(int groups, const Half *A, long lda, const Half *B, float *C, long ldc) {
    F sums[M][NV];
#pragma GCC unroll 12
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) sums[r][v] = F{};
    for (int g = 0; g < groups; g++) {
        I b[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) std::memcpy(&b[v], B + (long)(g * NV + v) * WIDTH * 2, sizeof(I));
#pragma GCC unroll 12
        for (int r = 0; r < M; r++) {
            int32_t lane;
            std::memcpy(&lane, A + r * lda + g * 2, 4);
            const I a = splat_int(lane);
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) sums[r][v] = dot_half(sums[r][v], a, b[v]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) store(C + r * ldc + v * WIDTH, sums[r][v]);
}

using HalfProduct = void (*)(int, const Half *, long, const Half *, float *, long);

// As many sums at a time as registers hold: narrow products take more rows.
constexpr int half_rows(int vectors) { return vectors * WIDTH <= TILE / 2 ? 2 * ROWS : ROWS; }

template <int NV, int... BELOW>
HalfProduct half_product_with(int rows, std::integer_sequence<int, BELOW...>) {
    static constexpr HalfProduct by_rows[] = {half_product_of<BELOW + 1, NV>...};
    return by_rows[rows - 1];
}
template <int NV>
HalfProduct half_product_with(int rows) {
    return half_product_with<NV>(rows, std::make_integer_sequence<int, half_rows(NV)>());
}
HalfProduct choose_half_product(int rows, int vectors) {
    switch (vectors) {
        case 1: return half_product_with<1>(rows);
        case 2: return half_product_with<2>(rows);
        case 3: return half_product_with<3>(rows);
        default: return half_product_with<4>(rows);
    }
}

void half_product(int rows, int depth, const Half *A, long lda, const Half *B, int columns, float *C, long ldc) {
    const int vectors = columns / WIDTH, most = half_rows(vectors);
    for (int row = 0; row < rows; row += most)
        choose_half_product(rows - row < most ? rows - row : most, vectors)(depth / 2, A + row * lda, lda, B, C + row * ldc,
                                                                            ldc);
}
#endif

void multiply_half(const Linear *linear, const Rounded *rounded, int num_rows, int tile, Output out, Epilogue epilogue,
                   Activation activation, const float *residual, long ldr) {
    const int vectors = tile_vectors(linear->N, tile), columns = vectors * WIDTH, from = tile * TILE;
    const int depth = linear->K + 2 * linear->num_exact;
    const Half *B = static_cast<const Half *>(linear->tiles) + (long)from * depth_of(*linear);
    const float *bias = linear->bias + from, *scale = linear->column_scale + from;
    alignas(64) float sums[HALF_ROWS * TILE];
    for (int row = 0; row < num_rows; row += HALF_ROWS) {
        const int rows = num_rows - row < HALF_ROWS ? num_rows - row : HALF_ROWS;
        const Half *A = static_cast<const Half *>(rounded->q) + row * rounded->ld;
        half_product(rows, depth, A, rounded->ld, B, columns, sums, TILE);
        for (int r = 0; r < rows; r++) {
            const float *line = sums + r * TILE;
            finish_row(out, row + r, from, linear->N, vectors, epilogue, activation, residual, ldr, [=](int v) {
                return fma(load(line + v * WIDTH), load(scale + v * WIDTH), load(bias + v * WIDTH));
            });
        }
    }
}

// Columns side by side, two k's to a lane. After the K weights of a column come those of its exact inputs: the first
// number of a weight by the second of its input, then the second by the first.
void pack_half(const float *weight, Linear *linear, int tile) {
    const int K = linear->K, columns = tile_vectors(linear->N, tile) * WIDTH, depth = depth_of(*linear);
    const int num_exact = linear->num_exact;
    Half *to = static_cast<Half *>(linear->tiles) + (long)tile * TILE * depth;
    for (int c = 0; c < columns; c++) {
        const int n = tile * TILE + c;
        const float *row = weight + (long)n * K;
        const float scale = best_scale(row, *linear);
        const auto put = [=](int k, Half half) { to[((long)(k / 2) * columns + c) * 2 + k % 2] = half; };
        linear->column_scale[n] = 1 / scale;
        for (int k = 0; k < K; k++) put(k, half_of(row[k] * scale));
        for (int i = 0; i < num_exact; i++) {
            const float w = row[linear->exact[i]] * scale;
            put(K + i, half_of(w));
            put(K + num_exact + i, half_of(w - rounded_to_half(w)));
        }
        for (int k = K + 2 * num_exact; k < depth; k++) put(k, 0);
    }
}

void round_half(const float *x, long ldx, int first, int last, const Linear *linear, const Rounded *out) {
    const int K = linear->K, num_exact = linear->num_exact;
    for (int row = first; row < last; row++) {
        const float *from = x + row * ldx;
        Half *to = (Half *)out->q + row * out->ld;
        for (int k = 0; k < K; k += WIDTH) store_half(to + k, load(from + k));
        for (int i = 0; i < num_exact; i++) {
            const int k = linear->exact[i];
            to[K + i] = half_of(from[k] - rounded_to_half(from[k]));
            to[K + num_exact + i] = to[k];
        }
        for (int k = K + 2 * num_exact; k < out->ld; k++) to[k] = 0;
    }
}
