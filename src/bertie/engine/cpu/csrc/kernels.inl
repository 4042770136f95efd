// The kernels, written once and compiled once per instruction set (see kernels_*.cpp).
//
// A product is cut into tiles of TILE columns. A tile's weights are read in the order in which they lie, for all rows,
// ROWS of them at a time, so that its ROWS × TILE sums stay in registers. One output's sum runs over k in one register
// from first to last: the answer for a row does not depend on which rows are beside it.

#include <cmath>
#include <cstdlib>

#include "kernels.h"
#include "simd.h"

namespace {

constexpr int ROWS = 6;
constexpr int VECTORS = WIDTH == 16 ? 4 : 16 / WIDTH;  // vectors to a tile
constexpr int TILE = VECTORS * WIDTH;
constexpr int BLOCK_K = 768;  // floats: a tile of this depth stays in the second-level cache

#if defined(__AVX512VNNI__) || defined(BERTIE_TILES)
using Quantum = uint8_t;      // activations as q; the zero point is taken out by column sums
constexpr int GROUP = 4;      // k's to one 32-bit lane
#else
using Quantum = int16_t;      // activations as q − zero
constexpr int GROUP = 2;
#endif
using Weight = std::conditional<GROUP == 4, int8_t, int16_t>::type;

inline int tiles_of(int N) { return (N + TILE - 1) / TILE; }
inline int tile_vectors(int N, int tile) {
    int left = (N - tile * TILE) / WIDTH;
    return left < VECTORS ? left : VECTORS;
}
inline int groups_of(int K) { return (K + GROUP - 1) / GROUP; }

// ---- activations ---------------------------------------------------------------------------------------------------

// Φ-form GELU: x·½(1 + erf(x/√2)). erf after Abramowitz & Stegun 7.1.26: 1 − (a₁t + … + a₅t⁵)·e^(−z²), t = 1/(1 + pz),
// absolute error below 2e-7.
INLINE F gelu_erf(F x) {
    const F z = largest(x, -x) * 0.70710678f;
    const F t = reciprocal(fma(z, splat(0.3275911f), splat(1.f)));
    F p = splat(1.061405429f);
    p = fma(p, t, splat(-1.453152027f));
    p = fma(p, t, splat(1.421413741f));
    p = fma(p, t, splat(-0.284496736f));
    p = fma(p, t, splat(0.254829592f));
    const F tail = p * t * exp2_of(z * z * -1.4426950f);  // 1 − erf(z)
    const F half = x * 0.5f;
    // x ≥ 0: x − ½x·tail;  x < 0: ½x·tail
    return largest(x, splat(0.f)) - largest(half, -half) * tail;
}

// The same to 1.3e-4, which eight bits cannot see: ½ + x·P(x²) in place of Φ, fitted on |x| ≤ 4.6 for the least error of
// x·Φ(x).
INLINE F gelu_coarse(F x) {
    const F c = largest(smallest(x, splat(4.6f)), splat(-4.6f)), t = c * c;
    F p = splat(2.5772707e-11f);
    p = fma(p, t, splat(-2.9192155e-9f));
    p = fma(p, t, splat(1.4501079e-7f));
    p = fma(p, t, splat(-4.1834787e-6f));
    p = fma(p, t, splat(7.8483492e-5f));
    p = fma(p, t, splat(-1.0189521e-3f));
    p = fma(p, t, splat(9.5205372e-3f));
    p = fma(p, t, splat(-6.5877534e-2f));
    p = fma(p, t, splat(3.9865294e-1f));
    return x * fma(c, p, splat(0.5f));
}

INLINE F gelu_tanh(F x) {
    // ½x(1 + tanh u) = x / (1 + e^(−2u))
    const F u = x * fma(x * x, splat(0.035677408f), splat(0.79788456f));
    const F e = exp2_of(smallest(u * -2.8853901f, splat(126.f)));
    return x * reciprocal(splat(1.f) + e);
}

template <F (*ACTIVATE_ONE)(F)>
INLINE void activate(float *out, int count) {
    for (int v = 0; v < count; v++) store(out + v * WIDTH, ACTIVATE_ONE(load(out + v * WIDTH)));
}

INLINE F relu(F x) { return largest(x, splat(0.f)); }

// A finished stretch of a row: [values, values + count·WIDTH)
INLINE void finish(float *out, int count, Epilogue epilogue, Activation activation, const float *residual) {
    if (epilogue == ACTIVATE) {
        if (activation == GELU_ERF)
            activate<gelu_erf>(out, count);
        else if (activation == GELU_COARSE)
            activate<gelu_coarse>(out, count);
        else if (activation == GELU_TANH)
            activate<gelu_tanh>(out, count);
        else
            activate<relu>(out, count);
    } else if (epilogue == RESIDUAL) {
        for (int v = 0; v < count; v++) store(out + v * WIDTH, load(out + v * WIDTH) + load(residual + v * WIDTH));
    }
}

// ---- float products ------------------------------------------------------------------------------------------------

// C[M, NV·WIDTH] (+)= A[M, K] · B[K, NV·WIDTH]
template <int M, int NV>
void product(int K, const float *A, long lda, const float *B, long ldb, float *C, long ldc, bool add) {
    F sums[M][NV];
#pragma GCC unroll 6
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) sums[r][v] = add ? load(C + r * ldc + v * WIDTH) : F{};
    for (int k = 0; k < K; k++) {
        F b[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) b[v] = load(B + k * ldb + v * WIDTH);
#pragma GCC unroll 6
        for (int r = 0; r < M; r++) {
            const F a = splat(A[r * lda + k]);
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) sums[r][v] = fma(a, b[v], sums[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < M; r++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) store(C + r * ldc + v * WIDTH, sums[r][v]);
}

using Product = void (*)(int, const float *, long, const float *, long, float *, long, bool);

template <int M>
Product product_of(int vectors) {
    switch (vectors) {
        case 1: return product<M, 1>;
        case 2: return product<M, 2>;
        case 3: return product<M, 3>;
        default: return product<M, 4>;
    }
}
Product choose_product(int rows, int vectors) {
    switch (rows) {
        case 1: return product_of<1>(vectors);
        case 2: return product_of<2>(vectors);
        case 3: return product_of<3>(vectors);
        case 4: return product_of<4>(vectors);
        case 5: return product_of<5>(vectors);
        default: return product_of<6>(vectors);
    }
}

void multiply_float(const Linear *linear, const float *x, long ldx, int row_first, int row_last, int tile, float *out,
                    long ldo, Epilogue epilogue, Activation activation, const float *residual, long ldr) {
    const int vectors = tile_vectors(linear->N, tile), columns = vectors * WIDTH, from = tile * TILE;
    const float *B = static_cast<const float *>(linear->tiles) + (long)from * linear->K;
    const Product whole = choose_product(ROWS, vectors);
    for (int k = 0; k < linear->K; k += BLOCK_K) {
        const int depth = linear->K - k < BLOCK_K ? linear->K - k : BLOCK_K;
        const bool last = k + depth == linear->K;
        for (int row = row_first; row < row_last; row += ROWS) {
            const int rows = row_last - row < ROWS ? row_last - row : ROWS;
            float *C = out + row * ldo + from;
            if (k == 0)
                for (int r = 0; r < rows; r++) std::memcpy(C + r * ldo, linear->bias + from, columns * sizeof(float));
            (rows == ROWS ? whole : choose_product(rows, vectors))(depth, x + row * ldx + k, ldx,
                                                                   B + (long)k * columns, columns, C, ldo, true);
            if (last && epilogue != PLAIN)
                for (int r = 0; r < rows; r++)
                    finish(C + r * ldo, vectors, epilogue, activation,
                           residual ? residual + (row + r) * ldr + from : nullptr);
        }
    }
}

// ---- eight-bit products --------------------------------------------------------------------------------------------

INLINE I dot(I sums, I a, I b) {
#if defined(__AVX512VNNI__)
    return (I)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sums + (I)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return sums + (I)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(BERTIE_TILES)
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
    if (GROUP == 4) whole = fma(load(column_sum), splat(-zero), whole);
    return fma(whole, load(column_scale) * splat(scale), load(bias));
}

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

#if defined(BERTIE_TILES)
#include "tiles.inl"
#endif

void multiply_int8(const Linear *linear, const Rounded *rounded, int row_first, int row_last, int tile, float *out,
                   long ldo, Epilogue epilogue, Activation activation, const float *residual, long ldr) {
    const int vectors = tile_vectors(linear->N, tile), from = tile * TILE, groups = groups_of(linear->K);
    const Weight *B = static_cast<const Weight *>(linear->tiles) + (long)from * groups * GROUP;
    const ProductInt8 whole = choose_product_int8(ROWS, vectors);
    for (int row = row_first, rows; row < row_last; row += rows) {
        float *C = out + row * ldo + from;
        const Quantum *A = static_cast<const Quantum *>(rounded->q) + row * rounded->ld;
        const int left = row_last - row;
        ProductInt8 product;
#if defined(BERTIE_TILES)
        if (left >= SQUARE) {
            rows = left >= 2 * SQUARE ? 2 * SQUARE : SQUARE;
            product = rows == SQUARE ? product_tiles_of<1>(vectors) : product_tiles_of<2>(vectors);
        } else
#endif
        {
            rows = left < ROWS ? left : ROWS;
            product = rows == ROWS ? whole : choose_product_int8(rows, vectors);
        }
        product(groups, A, rounded->ld, B, rounded->scale + row, rounded->zero + row, linear->column_scale + from,
                linear->column_sum + from, linear->bias + from, C, ldo);
        if (epilogue != PLAIN)
            for (int r = 0; r < rows; r++)
                finish(C + r * ldo, vectors, epilogue, activation,
                       residual ? residual + (row + r) * ldr + from : nullptr);
    }
}

void multiply(const Linear *linear, const float *x, long ldx, const Rounded *rounded, int row_first, int row_last,
              int tile_first, int tile_last, float *out, long ldo, Epilogue epilogue, Activation activation,
              const float *residual, long ldr) {
#if defined(BERTIE_TILES)
    const TileUnit unit(linear->int8);
#endif
    for (int tile = tile_first; tile < tile_last; tile++) {
        if (linear->int8)
            multiply_int8(linear, rounded, row_first, row_last, tile, out, ldo, epilogue, activation, residual, ldr);
        else
            multiply_float(linear, x, ldx, row_first, row_last, tile, out, ldo, epilogue, activation, residual, ldr);
    }
}

// ---- making weights ready ------------------------------------------------------------------------------------------

long tiles_bytes(int K, int N, bool int8) {
    return int8 ? (long)groups_of(K) * GROUP * N * (long)sizeof(Weight) : (long)K * N * (long)sizeof(float);
}

// Columns are written side by side within a tile, which fits a cache; the weight's rows are read from end to end.
void pack_float(const float *weight, Linear *linear, int tile) {
    const int K = linear->K, columns = tile_vectors(linear->N, tile) * WIDTH;
    float *to = static_cast<float *>(linear->tiles) + (long)tile * TILE * K;
    for (int c = 0; c < columns; c++) {
        const float *row = weight + (long)(tile * TILE + c) * K;
        for (int k = 0; k < K; k++) to[(long)k * columns + c] = row[k];
    }
}

void pack_int8(const float *weight, Linear *linear, int tile) {
    const int K = linear->K, columns = tile_vectors(linear->N, tile) * WIDTH, depth = groups_of(K) * GROUP;
    Weight *to = static_cast<Weight *>(linear->tiles) + (long)tile * TILE * depth;
    float *smoothed = static_cast<float *>(std::malloc(depth * sizeof(float)));
    for (int c = 0; c < columns; c++) {
        const int n = tile * TILE + c;
        const float *row = weight + (long)n * K;
        float most = 0;
        for (int k = 0; k < K; k++) {
            smoothed[k] = row[k] / linear->inverse_smooth[k];
            most = std::fmax(most, std::fabs(smoothed[k]));
        }
        for (int k = K; k < depth; k++) smoothed[k] = 0;
        const float scale = most > 0 ? most / 127 : 1, inverse = 1 / scale;
        int32_t total = 0;
        for (int g = 0; g < depth / GROUP; g++)
            for (int j = 0; j < GROUP; j++) {
                const int q = (int)std::lrintf(smoothed[g * GROUP + j] * inverse);
                to[((long)g * columns + c) * GROUP + j] = (Weight)q;
                total += q;
            }
        linear->column_scale[n] = scale;
        linear->column_sum[n] = (float)total;
    }
    std::free(smoothed);
}

void pack(const float *weight, Linear *linear, int tile) {
    linear->int8 ? pack_int8(weight, linear, tile) : pack_float(weight, linear, tile);
}

// Each row between its smallest and its largest value (0 included) in 255 steps.
void round_rows(const float *x, long ldx, int first, int last, int K, const float *inverse_smooth, Rounded *out) {
    for (int row = first; row < last; row++) {
        const float *from = x + row * ldx;
        F low = F{}, high = F{};
        for (int k = 0; k < K; k += WIDTH) {
            const F v = load(from + k) * load(inverse_smooth + k);
            low = smallest(low, v);
            high = largest(high, v);
        }
        const float least = minimum(low), most = maximum(high), range = most - least;
        // Any step does for a row of zeros; a small one keeps it from counting as wide.
        const float scale = range > 0 ? range / 255 : 1e-30f, inverse = 1 / scale;
        const int zero = (int)std::lrintf(-least * inverse);
        out->scale[row] = scale;
        out->zero[row] = (float)zero;
        Quantum *to = static_cast<Quantum *>(out->q) + row * out->ld;
#if defined(__AVX512VNNI__)
        const __m512 zeros = _mm512_set1_ps((float)zero), steps = _mm512_set1_ps(inverse);
        for (int k = 0; k < K; k += WIDTH) {
            const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(from + k), _mm512_loadu_ps(inverse_smooth + k));
            const __m512i whole = _mm512_cvtps_epi32(_mm512_fmadd_ps(v, steps, zeros));
            const __m512i clipped = _mm512_max_epi32(whole, _mm512_setzero_si512());
            _mm_storeu_si128((__m128i *)(to + k), _mm512_cvtusepi32_epi8(clipped));
        }
#else
        for (int k = 0; k < K; k += WIDTH) {
            I whole;
            nearest(fma(load(from + k) * load(inverse_smooth + k), splat(inverse), splat((float)zero)), &whole);
            for (int i = 0; i < WIDTH; i++) {
                const int q = whole[i] < 0 ? 0 : whole[i] > 255 ? 255 : whole[i];
                to[k + i] = (Quantum)(GROUP == 4 ? q : q - zero);
            }
        }
#endif
    }
}

// ---- LayerNorm -----------------------------------------------------------------------------------------------------

// `width` real numbers to a row; `padded` of them are stored, zeros at the end (weight and bias are zero there too), which
// count for nothing. The mean of a row far from zero is rounded, by more than its numbers may differ: what it is off by is
// the mean of the differences.
void layer_norm(const float *x, long ldx, int first, int last, int width, int padded, const float *weight,
                const float *bias, float eps, float *out, long ldo) {
    for (int row = first; row < last; row++) {
        const float *from = x + row * ldx;
        F total = F{};
        for (int k = 0; k < padded; k += WIDTH) total = total + load(from + k);
        const float mean = sum(total) / width;
        F differences = F{}, squares = F{};
        for (int k = 0; k < padded; k += WIDTH) {
            F d = load(from + k) - mean;
            if (k + WIDTH > width) d = first_lanes(d, width - k, F{});
            differences = differences + d;
            squares = fma(d, d, squares);
        }
        const float off = sum(differences) / width, around = sum(squares) / width;
        const float inverse = 1 / std::sqrt(around - std::fmin(off * off, around) + eps);
        float *to = out + row * ldo;
        for (int k = 0; k < padded; k += WIDTH)
            store(to + k, fma((load(from + k) - mean - off) * inverse, load(weight + k), load(bias + k)));
    }
}

// ---- attention -----------------------------------------------------------------------------------------------------

long attention_scratch(int length, int head_width) {
    const long keys = (length + TILE - 1) / TILE * TILE;
    return keys * head_width + ROWS * keys + ROWS;
}

// to[i·ldt + j] = from[j·ld + i] for a square of WIDTH.
INLINE void turn_square(const float *from, long ld, float *to, long ldt) {
#if defined(__AVX512F__)
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(from + i * ld);
    // pairs of rows, then fours, then the 128-bit quarters
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[4 * i] = (__m512)_mm512_unpacklo_pd((__m512d)b[4 * i], (__m512d)b[4 * i + 2]);
        a[4 * i + 1] = (__m512)_mm512_unpackhi_pd((__m512d)b[4 * i], (__m512d)b[4 * i + 2]);
        a[4 * i + 2] = (__m512)_mm512_unpacklo_pd((__m512d)b[4 * i + 1], (__m512d)b[4 * i + 3]);
        a[4 * i + 3] = (__m512)_mm512_unpackhi_pd((__m512d)b[4 * i + 1], (__m512d)b[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512 low = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88), odd = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);
        const __m512 low2 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88);
        const __m512 odd2 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
        _mm512_storeu_ps(to + i * ldt, _mm512_shuffle_f32x4(low, low2, 0x88));
        _mm512_storeu_ps(to + (8 + i) * ldt, _mm512_shuffle_f32x4(low, low2, 0xdd));
        _mm512_storeu_ps(to + (4 + i) * ldt, _mm512_shuffle_f32x4(odd, odd2, 0x88));
        _mm512_storeu_ps(to + (12 + i) * ldt, _mm512_shuffle_f32x4(odd, odd2, 0xdd));
    }
#else
    for (int j = 0; j < WIDTH; j++)
        for (int i = 0; i < WIDTH; i++) to[i * ldt + j] = from[j * ld + i];
#endif
}

// Keys turned so that a tile of TILE keys can be read side by side: [tiles][head_width][TILE]; the last one narrower.
void turn_keys(const float *k, long ld, int length, int head_width, float *to) {
    for (int from = 0; from < length; from += TILE) {
        const int left = length - from < TILE ? length - from : TILE;
        const int columns = (left + WIDTH - 1) / WIDTH * WIDTH;
        for (int block = 0; block < columns; block += WIDTH) {
            const int some = length - from - block < WIDTH ? length - from - block : WIDTH;
            const float *rows = k + (long)(from + block) * ld;
            if (some == WIDTH) {
                for (int i = 0; i < head_width; i += WIDTH)
                    turn_square(rows + i, ld, to + (long)i * columns + block, columns);
            } else {
                for (int i = 0; i < head_width; i++)
                    for (int j = 0; j < WIDTH; j++)
                        to[(long)i * columns + block + j] = j < some ? rows[j * ld + i] : 0;
            }
        }
        to += (long)columns * head_width;
    }
}

void attend(const float *q, const float *k, const float *v, long ld, int length, int head_width, float scale,
            float *out, long ldo, float *scratch) {
    const long keys = (length + WIDTH - 1) / WIDTH * WIDTH;
    float *turned = scratch, *scores = scratch + (long)((length + TILE - 1) / TILE * TILE) * head_width;
    turn_keys(k, ld, length, head_width, turned);
    const F factor = splat(scale * 1.4426950408889634f);  // e^x = 2^(x·log₂e)
    for (int row = 0; row < length; row += ROWS) {
        const int rows = length - row < ROWS ? length - row : ROWS;
        const float *tile = turned;
        for (int from = 0; from < length; from += TILE) {
            const int left = length - from < TILE ? length - from : TILE, vectors = (left + WIDTH - 1) / WIDTH;
            choose_product(rows, vectors)(head_width, q + row * ld, ld, tile, vectors * WIDTH, scores + from, keys,
                                          false);
            tile += (long)vectors * WIDTH * head_width;
        }
        float inverse[ROWS];
        for (int r = 0; r < rows; r++) {
            float *s = scores + r * keys;
            float *last = s + keys - WIDTH;  // holds the keys past the end, which count for nothing
            const int left = length - (int)(keys - WIDTH);
            F high = first_lanes(load(last), left, splat(-3.0e38f));
            for (int j = 0; j < keys - WIDTH; j += WIDTH) high = largest(high, load(s + j));
            const F most = splat(maximum(high)) * factor;
            F total = F{};
            for (int j = 0; j < keys; j += WIDTH) {
                const F e = exp2_of(fma(load(s + j), factor, -most));
                store(s + j, e);
                if (j < keys - WIDTH) total = total + e;
            }
            const F end = first_lanes(load(last), left, F{});
            store(last, end);
            total = total + end;
            inverse[r] = 1 / sum(total);
        }
        for (int column = 0; column < head_width; column += TILE) {
            const int left = head_width - column < TILE ? head_width - column : TILE, vectors = left / WIDTH;
            float *to = out + row * ldo + column;
            choose_product(rows, vectors)(length, scores, keys, v + column, ld, to, ldo, false);
            for (int r = 0; r < rows; r++)
                for (int j = 0; j < left; j += WIDTH)
                    store(to + r * ldo + j, load(to + r * ldo + j) * inverse[r]);
        }
    }
}

}  // namespace

#define KERNELS(table, name)                                                                                        \
    extern const Kernels table = {name,  TILE,     tiles_bytes, pack,   round_rows,                                 \
                                  multiply, layer_norm, attend,  attention_scratch};
