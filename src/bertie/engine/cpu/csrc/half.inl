// bfloat16 products: two k's to a 32-bit lane, sums in float32.
//
// A[rows, depth] is row-major; B is [depth / 2][columns][2], which a vector unit reads a line at a time and a matrix unit
// 16 lines at a time. A sum's order depends on neither rows nor columns beside it. AMX adds even and odd k's apart, 32 at
// a step, so its answers differ from the vector unit's in the last bits, and all of a model's rows go through it.

#if defined(BERTIE_TILES)
constexpr int HALF_ROWS = 2 * SQUARE;  // rows to a block

// C[rows, columns] = A · B for rows ≤ HALF_ROWS, B the sum of its parts. Whole squares are read and written: C has room
// for HALF_ROWS.
void half_product(int rows, int depth, const Half *A, long lda, const Half *B, int columns, float *C, long ldc,
                  int parts = 1) {
    const long a = lda * (long)sizeof(Half), b = columns * 4L, c = ldc * (long)sizeof(float);
    for (int n = 0; n < columns; n += 2 * SQUARE) {
        const Half *from = B + 2 * n;
        if (n + SQUARE < columns)
            (rows > SQUARE ? squares<2, 2, true> : squares<1, 2, true>)(depth / 32, A, a, from, b, C + n, c, parts);
        else
            (rows > SQUARE ? squares<2, 1, true> : squares<1, 1, true>)(depth / 32, A, a, from, b, C + n, c, parts);
    }
}
#else
constexpr int HALF_ROWS = 5 * ROWS;

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
void half_product_of(int groups, const Half *A, long lda, const Half *B, float *C, long ldc, int parts) {
    F sums[M][NV];
#pragma GCC unroll 6
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) sums[r][v] = F{};
    for (int part = 0; part < parts; part++, B += (long)groups * NV * WIDTH * 2)
        for (int g = 0; g < groups; g++) {
            I b[NV];
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) std::memcpy(&b[v], B + (long)(g * NV + v) * WIDTH * 2, sizeof(I));
#pragma GCC unroll 6
            for (int r = 0; r < M; r++) {
                int32_t lane;
                std::memcpy(&lane, A + r * lda + g * 2, 4);
                const I a = splat_int(lane);
#pragma GCC unroll 4
                for (int v = 0; v < NV; v++) sums[r][v] = dot_half(sums[r][v], a, b[v]);
            }
        }
#pragma GCC unroll 6
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) store(C + r * ldc + v * WIDTH, sums[r][v]);
}

using HalfProduct = void (*)(int, const Half *, long, const Half *, float *, long, int);

template <int NV>
HalfProduct half_product_with(int rows) {
    switch (rows) {
        case 1: return half_product_of<1, NV>;
        case 2: return half_product_of<2, NV>;
        case 3: return half_product_of<3, NV>;
        case 4: return half_product_of<4, NV>;
        case 5: return half_product_of<5, NV>;
        default: return half_product_of<6, NV>;
    }
}
HalfProduct choose_half_product(int rows, int vectors) {
    switch (vectors) {
        case 1: return half_product_with<1>(rows);
        case 2: return half_product_with<2>(rows);
        case 3: return half_product_with<3>(rows);
        default: return half_product_with<4>(rows);
    }
}

void half_product(int rows, int depth, const Half *A, long lda, const Half *B, int columns, float *C, long ldc,
                  int parts = 1) {
    for (int row = 0; row < rows; row += ROWS)
        choose_half_product(rows - row < ROWS ? rows - row : ROWS, columns / WIDTH)(depth / 2, A + row * lda, lda, B,
                                                                                    C + row * ldc, ldc, parts);
}
#endif

// A finished stretch of a row, from column `from` on; after the last column zeros, up to the row's end.
INLINE void put_half(const float *values, int vectors, long row, int from, int N, Output out) {
    Half *line = static_cast<Half *>(out.data) + row * out.ld;
    for (int v = 0; v < vectors; v++) store_half(line + from + v * WIDTH, load(values + v * WIDTH));
    if (from + vectors * WIDTH == N)
        for (long column = N; column < out.ld; column++) line[column] = 0;
}

void multiply_half(const Linear *linear, const Rounded *rounded, int num_rows, int tile, Output out, Epilogue epilogue,
                   Activation activation, const float *residual, long ldr) {
    const int vectors = tile_vectors(linear->N, tile), columns = vectors * WIDTH, from = tile * TILE;
    const int depth = depth_of(linear->K);
    const Half *B = static_cast<const Half *>(linear->tiles) + (long)from * depth * linear->parts;
    const float *bias = linear->bias + from;
    alignas(64) float sums[HALF_ROWS * TILE];
    for (int row = 0; row < num_rows; row += HALF_ROWS) {
        const int rows = num_rows - row < HALF_ROWS ? num_rows - row : HALF_ROWS;
        const Half *A = static_cast<const Half *>(rounded->q) + row * rounded->ld;
        half_product(rows, depth, A, rounded->ld, B, columns, sums, TILE, linear->parts);
        for (int r = 0; r < rows; r++) {
            float *line = out.half ? sums + r * TILE : static_cast<float *>(out.data) + (row + r) * out.ld + from;
            for (int v = 0; v < columns; v += WIDTH) store(line + v, load(sums + r * TILE + v) + load(bias + v));
            finish(line, vectors, epilogue, activation, residual ? residual + (row + r) * ldr + from : nullptr);
            if (out.half) put_half(line, vectors, row + r, from, linear->N, out);
        }
    }
}

// A part is what the parts before it have left of a weight.
void pack_half(const float *weight, Linear *linear, int tile) {
    const int K = linear->K, columns = tile_vectors(linear->N, tile) * WIDTH, depth = depth_of(K);
    Half *to = static_cast<Half *>(linear->tiles) + (long)tile * TILE * depth * linear->parts;
    for (int c = 0; c < columns; c++) {
        const float *row = weight + (long)(tile * TILE + c) * K;
        for (int k = 0; k < depth; k += WIDTH) {
            F left = k < K ? load(row + k) : F{};
            for (int part = 0; part < linear->parts; part++, left = left - (F)upper_half(left)) {
                Half some[WIDTH];
                store_half(some, left);
                for (int i = 0; i < WIDTH; i++)
                    to[((long)(part * depth + k + i) / 2 * columns + c) * 2 + i % 2] = some[i];
            }
        }
    }
}
