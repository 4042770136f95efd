// The kernels, written once and compiled once per instruction set (see kernels_*.cpp).
//
// A product is cut into tiles of TILE columns. A tile's weights are read in the order in which they lie, for all rows,
// ROWS of them at a time, so that its ROWS × TILE sums stay in registers. One output's sum runs over k in one register
// from first to last: the answer for a row does not depend on which rows are beside it.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "kernels.h"
#include "simd.h"

namespace {

constexpr int ROWS = 6;
constexpr int VECTORS = WIDTH == 16 ? 4 : 16 / WIDTH;  // vectors to a tile
constexpr int TILE = VECTORS * WIDTH;
constexpr int BLOCK_K = 768;  // floats: a tile of this depth stays in the second-level cache

// bfloat16 as 16 bits, two to a lane. Elsewhere its products are float32's, of rounded numbers: exact ones, as here.
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(BERTIE_TILES) || \
    defined(BERTIE_PAIRS)
#define BERTIE_HALF
using Half = uint16_t;
#else
using Half = float;
#endif

#if defined(__AVX512VNNI__) || defined(BERTIE_TILES) || defined(BERTIE_PAIRS)
using Quantum = uint8_t;      // activations as q; the zero point is taken out by column sums
constexpr int GROUP = 4;      // k's to one 32-bit lane
constexpr int LEAST = 0;      // what q = 0 is kept as
#elif defined(__ARM_FEATURE_MATMUL_INT8)
using Quantum = uint8_t;
constexpr int GROUP = 8;      // two columns to a vector
constexpr int LEAST = 0;
#elif defined(__ARM_FEATURE_DOTPROD)
using Quantum = int8_t;       // activations as q − 128: this dot product's factors both have signs
constexpr int GROUP = 4;
constexpr int LEAST = -128;
#else
using Quantum = int16_t;      // activations as q − zero
constexpr int GROUP = 2;
constexpr int LEAST = 0;
#endif
typedef Quantum Quanta __attribute__((vector_size(WIDTH * sizeof(Quantum))));
using Weight = std::conditional<GROUP != 2, int8_t, int16_t>::type;

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

// The same to 0.0002 (or of itself, where it is above 1), which neither eight bits nor bfloat16 can see: ½ + x·P(x²) in
// place of Φ, fitted on |x| ≤ 3.9 for the least error of x·Φ(x).
INLINE F gelu_coarse(F x) {
    const F c = largest(smallest(x, splat(3.9f)), splat(-3.9f)), t = c * c;
    F p = splat(2.6271682e-08f);
    p = fma(p, t, splat(-1.7705072e-06f));
    p = fma(p, t, splat(5.1237548e-05f));
    p = fma(p, t, splat(-0.00084451499f));
    p = fma(p, t, splat(0.0089138034f));
    p = fma(p, t, splat(-0.064869519f));
    p = fma(p, t, splat(0.39808565f));
    return x * fma(c, p, splat(0.5f));
}

INLINE F gelu_tanh(F x) {
    // ½x(1 + tanh u) = x / (1 + e^(−2u))
    const F u = x * fma(x * x, splat(0.035677408f), splat(0.79788456f));
    const F e = exp2_of(smallest(u * -2.8853901f, splat(126.f)));
    return x * reciprocal(splat(1.f) + e);
}

INLINE F relu(F x) { return largest(x, splat(0.f)); }

// A stretch of a row on its way out: get(v) is vector v of a product, put(v, …) takes what becomes of it.
template <F (*ACTIVATE_ONE)(F), class Get, class Put>
INLINE void activate(int count, Get get, Put put) {
    for (int v = 0; v < count; v++) put(v, ACTIVATE_ONE(get(v)));
}
template <class Get, class Put>
INLINE void finish(int count, Epilogue epilogue, Activation activation, const float *residual, Get get, Put put) {
    if (epilogue == PLAIN)
        for (int v = 0; v < count; v++) put(v, get(v));
    else if (epilogue == RESIDUAL)
        for (int v = 0; v < count; v++) put(v, get(v) + load(residual + v * WIDTH));
    else if (activation == GELU_ERF)
        activate<gelu_erf>(count, get, put);
    else if (activation == GELU_COARSE)
        activate<gelu_coarse>(count, get, put);
    else if (activation == GELU_TANH)
        activate<gelu_tanh>(count, get, put);
    else
        activate<relu>(count, get, put);
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

void multiply_float(const Linear *linear, const float *x, long ldx, int num_rows, int tile, float *out, long ldo,
                    Epilogue epilogue, Activation activation, const float *residual, long ldr) {
    const int vectors = tile_vectors(linear->N, tile), columns = vectors * WIDTH, from = tile * TILE;
    const float *B = static_cast<const float *>(linear->tiles) + (long)from * linear->K;
    const Product whole = choose_product(ROWS, vectors);
    for (int k = 0; k < linear->K; k += BLOCK_K) {
        const int depth = linear->K - k < BLOCK_K ? linear->K - k : BLOCK_K;
        const bool last = k + depth == linear->K;
        for (int row = 0; row < num_rows; row += ROWS) {
            const int rows = num_rows - row < ROWS ? num_rows - row : ROWS;
            float *C = out + row * ldo + from;
            if (k == 0)
                for (int r = 0; r < rows; r++) std::memcpy(C + r * ldo, linear->bias + from, columns * sizeof(float));
            (rows == ROWS ? whole : choose_product(rows, vectors))(depth, x + row * ldx + k, ldx,
                                                                   B + (long)k * columns, columns, C, ldo, true);
            for (int r = 0; r < rows && last && epilogue != PLAIN; r++)
                finish(
                    vectors, epilogue, activation, residual ? residual + (row + r) * ldr + from : nullptr,
                    [=](int v) { return load(C + r * ldo + v * WIDTH); },
                    [=](int v, F y) { store(C + r * ldo + v * WIDTH, y); });
        }
    }
}

// Rounding a column's weights costs less where most of them lie just below a power of two, and where the few that count
// most are near a bfloat16 number by chance. So a column is multiplied by the best of some factors first, and its sums are
// divided by it: the best one has the least mean square error for inputs of these `moments`.
constexpr int SCALES = 256;

INLINE float error_of(const float *row, const Linear &linear, float scale) {
    F total = F{};
    for (int k = 0; k < linear.K; k += WIDTH) {
        const F w = load(row + k) * scale, off = w - (F)upper_half(w);
        total = fma(off * off, load(linear.moments + k), total);
    }
    return sum(total) / (scale * scale);
}

float best_scale(const float *row, const Linear &linear) {
    if (!linear.moments) return 1;
    float best = 1, least = error_of(row, linear, 1);
    for (int i = 1; i < SCALES && least > 0; i++) {
        const float scale = std::exp2((float)i / SCALES), error = error_of(row, linear, scale);
        if (error < least) least = error, best = scale;
    }
    return best;
}

// finish() into row `row` of `out`, from column `from` on; in bfloat16 zeros after the last column, up to the row's end.
template <class Get>
INLINE void finish_row(Output out, long row, int from, int N, int vectors, Epilogue epilogue, Activation activation,
                       const float *residual, long ldr, Get get) {
    if (residual) residual += row * ldr + from;
#if defined(BERTIE_HALF)
    if (out.half) {
        Half *line = static_cast<Half *>(out.data) + row * out.ld;
        finish(vectors, epilogue, activation, residual, get, [=](int v, F y) { store_half(line + from + v * WIDTH, y); });
        if (from + vectors * WIDTH == N)
            for (long column = N; column < out.ld; column++) line[column] = 0;
        return;
    }
#endif
    (void)N;
    float *line = static_cast<float *>(out.data) + row * out.ld + from;
    finish(vectors, epilogue, activation, residual, get, [=](int v, F y) { store(line + v * WIDTH, y); });
}

#include "int8.inl"
#if defined(BERTIE_TILES)
#include "tiles.inl"
#endif
#if defined(BERTIE_HALF)
#include "half.inl"
#endif

constexpr int MOST_ROWS = 32;  // of an eight-bit product

void multiply_int8(const Linear *linear, const Rounded *rounded, int num_rows, int tile, Output out, Epilogue epilogue,
                   Activation activation, const float *residual, long ldr) {
    const int vectors = tile_vectors(linear->N, tile), from = tile * TILE, groups = groups_of(linear->K);
    const Weight *B = static_cast<const Weight *>(linear->tiles) + (long)from * groups * GROUP;
    const ProductInt8 whole = choose_product_int8(ROWS, vectors);
    alignas(64) float before[MOST_ROWS * TILE];
    for (int row = 0, rows; row < num_rows; row += rows) {
        const Quantum *A = static_cast<const Quantum *>(rounded->q) + row * rounded->ld;
        const int left = num_rows - row;
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
                linear->column_sum + from, linear->bias + from, before, TILE);
        for (int r = 0; r < rows; r++) {
            const float *line = before + r * TILE;
            finish_row(out, row + r, from, linear->N, vectors, epilogue, activation, residual, ldr,
                       [=](int v) { return load(line + v * WIDTH); });
        }
    }
}

void multiply(const Linear *linear, const float *x, long ldx, const Rounded *rounded, int rows, int tile_first,
              int tile_last, Output out, Epilogue epilogue, Activation activation, const float *residual, long ldr) {
#if defined(BERTIE_TILES)
    const TileUnit unit(linear->kind != FLOAT);
#endif
    for (int tile = tile_first; tile < tile_last; tile++) {
        if (linear->kind == INT8)
            multiply_int8(linear, rounded, rows, tile, out, epilogue, activation, residual, ldr);
#if defined(BERTIE_HALF)
        else if (linear->kind == BFLOAT16)
            multiply_half(linear, rounded, rows, tile, out, epilogue, activation, residual, ldr);
#endif
        else {
            if (linear->kind == BFLOAT16) x = static_cast<const float *>(rounded->q), ldx = rounded->ld;
            multiply_float(linear, x, ldx, rows, tile, static_cast<float *>(out.data), out.ld, epilogue, activation,
                           residual, ldr);
        }
    }
}

// ---- making weights ready ------------------------------------------------------------------------------------------

long tiles_bytes(const Linear *linear) {
    const long K = linear->K, N = linear->N;
    if (linear->kind == INT8) return groups_of(linear->K) * GROUP * N * (long)sizeof(Weight);
    if (linear->kind == FLOAT) return K * N * (long)sizeof(float);
#if defined(BERTIE_HALF)
    return depth_of(*linear) * N * (long)sizeof(Half);
#else
    return K * N * (long)sizeof(float);
#endif
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

#if !defined(BERTIE_HALF)  // rounded numbers as float32; exact ones need no second number
void pack_half(const float *weight, Linear *linear, int tile) {
    pack_float(weight, linear, tile);
    const int K = linear->K, columns = tile_vectors(linear->N, tile) * WIDTH;
    float *to = static_cast<float *>(linear->tiles) + (long)tile * TILE * K;
    for (int c = 0; c < columns; c++) {
        const float *row = weight + (long)(tile * TILE + c) * K;
        const float scale = best_scale(row, *linear);
        for (int k = 0; k < K; k++) to[(long)k * columns + c] = rounded_to_half(row[k] * scale) / scale;
        for (int i = 0; i < linear->num_exact; i++) to[(long)linear->exact[i] * columns + c] = row[linear->exact[i]];
    }
}

void round_half(const float *x, long ldx, int first, int last, const Linear *linear, const Rounded *out) {
    for (int row = first; row < last; row++) {
        const float *from = x + row * ldx;
        float *to = (float *)out->q + row * out->ld;
        for (int k = 0; k < linear->K; k += WIDTH) store(to + k, (F)upper_half(load(from + k)));
        for (int i = 0; i < linear->num_exact; i++) to[linear->exact[i]] = from[linear->exact[i]];
    }
}
#endif

void pack(const float *weight, Linear *linear, int tile) {
    if (linear->kind == INT8)
        pack_int8(weight, linear, tile);
    else if (linear->kind == BFLOAT16)
        pack_half(weight, linear, tile);
    else
        pack_float(weight, linear, tile);
}

// ---- rounding activations ------------------------------------------------------------------------------------------

// Each row between its smallest and its largest value (0 included) in 255 steps.
void round_int8(const float *x, long ldx, int first, int last, int K, const float *inverse_smooth, const Rounded *out) {
    for (int row = first; row < last; row++) {
        const float *from = x + row * ldx;
        F low = F{}, high = F{}, low2 = F{}, high2 = F{};  // two of each: neither waits for the one before
        for (int k = 0; k < K; k += 2 * WIDTH) {
            const int next = k + WIDTH < K ? k + WIDTH : k;
            const F v = load(from + k) * load(inverse_smooth + k), v2 = load(from + next) * load(inverse_smooth + next);
            low = smallest(low, v), high = largest(high, v);
            low2 = smallest(low2, v2), high2 = largest(high2, v2);
        }
        const float least = minimum(smallest(low, low2)), most = maximum(largest(high, high2)), range = most - least;
        // Any step does for a row of zeros; a small one keeps it from counting as wide.
        const float scale = range > 0 ? range / 255 : 1e-30f, inverse = 1 / scale;
        const int zero = (int)std::lrintf(-least * inverse);
        out->scale[row] = scale;
        out->zero[row] = (float)(zero + LEAST);
        Quantum *to = (Quantum *)out->q + row * out->ld;
#if defined(__AVX512VNNI__)
        const __m512 zeros = _mm512_set1_ps((float)zero), steps = _mm512_set1_ps(inverse);
        const auto whole = [=](int k) {
            const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(from + k), _mm512_loadu_ps(inverse_smooth + k));
            return _mm512_cvtps_epi32(_mm512_fmadd_ps(v, steps, zeros));
        };
        // Four vectors become one, clipped on the way; each quarter of it has numbers of all four, which are sorted last.
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        int k = 0;
        for (; k + 4 * WIDTH <= K; k += 4 * WIDTH) {
            const __m512i first = _mm512_packs_epi32(whole(k), whole(k + WIDTH));
            const __m512i last = _mm512_packs_epi32(whole(k + 2 * WIDTH), whole(k + 3 * WIDTH));
            _mm512_storeu_si512(to + k, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(first, last)));
        }
        for (; k < K; k += WIDTH) {
            const __m512i clipped = _mm512_max_epi32(whole(k), _mm512_setzero_si512());
            _mm_storeu_si128((__m128i *)(to + k), _mm512_cvtusepi32_epi8(clipped));
        }
#else
        for (int k = 0; k < K; k += WIDTH) {
            I whole;
            nearest(fma(load(from + k) * load(inverse_smooth + k), splat(inverse), splat((float)zero)), &whole);
            const I bottom = I{}, top = bottom + 255;
            whole = whole < bottom ? bottom : whole > top ? top : whole;
            const Quanta kept = __builtin_convertvector(whole + (GROUP != 2 ? LEAST : -zero), Quanta);
            std::memcpy(to + k, &kept, sizeof kept);
        }
#endif
    }
}

void round_rows(const float *x, long ldx, int first, int last, const Linear *linear, const Rounded *out) {
    if (linear->kind == INT8)
        round_int8(x, ldx, first, last, linear->K, linear->inverse_smooth, out);
    else
        round_half(x, ldx, first, last, linear, out);
}

// ---- LayerNorm -----------------------------------------------------------------------------------------------------

// `width` real numbers to a row; `padded` of them are stored, zeros at the end (weight and bias are zero there too), which
// count for nothing. The mean of a row far from zero is rounded, by more than its numbers may differ: what it is off by is
// the mean of the differences.
void layer_norm(const float *x, long ldx, int first, int last, int width, int padded, const float *weight,
                const float *bias, float eps, float *out, long ldo, float *inverses) {
    for (int row = first; row < last; row++) {
        const float *from = x + row * ldx;
        F total = F{}, total2 = F{};  // two of each sum: neither waits for the one before
        const int even = padded / (2 * WIDTH) * (2 * WIDTH);
        for (int k = 0; k < even; k += 2 * WIDTH) {
            total = total + load(from + k);
            total2 = total2 + load(from + k + WIDTH);
        }
        if (even < padded) total = total + load(from + even);
        const float mean = sum(total + total2) / width;
        F differences = F{}, squares = F{}, differences2 = F{}, squares2 = F{};
        const auto add = [=](int k, F &differences, F &squares) {
            F d = load(from + k) - mean;
            if (k + WIDTH > width) d = first_lanes(d, width - k, F{});
            differences = differences + d;
            squares = fma(d, d, squares);
        };
        for (int k = 0; k < even; k += 2 * WIDTH) {
            add(k, differences, squares);
            add(k + WIDTH, differences2, squares2);
        }
        if (even < padded) add(even, differences, squares);
        const float off = sum(differences + differences2) / width, around = sum(squares + squares2) / width;
        const float inverse = 1 / std::sqrt(around - std::fmin(off * off, around) + eps);
        if (inverses) inverses[row] = inverse;
        float *to = out + row * ldo;
        for (int k = 0; k < padded; k += WIDTH)
            store(to + k, fma((load(from + k) - mean - off) * inverse, load(weight + k), load(bias + k)));
    }
}

// ---- the first product, looked up ------------------------------------------------------------------------------------

template <class Put>
INLINE void add_found(const int16_t *word, float step, const float *position, const float *type, const float *constant,
                      float inverse, int N, Put put) {
    for (int i = 0; i < N; i += WIDTH) {
        S steps;
        std::memcpy(&steps, word + i, sizeof steps);
        F total = fma(to_float(__builtin_convertvector(steps, I)), splat(step), load(position + i));
        if (type) total = total + load(type + i);
        put(i, fma(total, splat(inverse), load(constant + i)));
    }
}

void look_up(const int16_t *word, float step, const float *position, const float *type, const float *constant,
             float inverse, int N, void *to, bool half) {
    if (half)
        add_found(word, step, position, type, constant, inverse, N,
                  [=](int i, F v) { store_half(static_cast<uint16_t *>(to) + i, v); });
    else
        add_found(word, step, position, type, constant, inverse, N,
                  [=](int i, F v) { store(static_cast<float *>(to) + i, v); });
}

#include "attention.inl"

}  // namespace

#if !defined(BERTIE_HALF)
#define KERNELS(table, name, bfloat16)                                                                                \
    extern const Kernels table = {name,     nullptr,    false,   TILE,   tiles_bytes, pack, round_rows,               \
                                  multiply, layer_norm, look_up, attend, nullptr,     attention_scratch};
#else
#define KERNELS(table, name, bfloat16)                                                                                \
    extern const Kernels table = {name,     bfloat16,   true,    TILE,   tiles_bytes, pack, round_rows,               \
                                  multiply, layer_norm, look_up, attend, attend_half, attention_scratch};
#endif
