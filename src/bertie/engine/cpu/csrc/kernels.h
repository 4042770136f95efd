// What every instruction set provides. One table of functions per set; dispatch.cpp picks one when a model is made.
#pragma once

#include <cstdint>

// C[M, N] = A[M, K] · B[K, N] (+ bias, then one of these)
enum Epilogue { PLAIN = 0, ACTIVATE = 1, RESIDUAL = 2 };
enum Activation { GELU_ERF = 0, GELU_TANH = 1, RELU = 2, GELU_COARSE = 3 };

// What a product's numbers are rounded to before they are multiplied. Sums are float32, or whole numbers for INT8.
enum Kind { FLOAT = 0, INT8 = 1, BFLOAT16 = 2 };

// A weight matrix made ready: columns in tiles, each tile stored in the order in which it is read.
struct Linear {
    int K = 0, N = 0;                 // multiples of 16
    Kind kind = FLOAT;
    void *tiles = nullptr;
    float *bias = nullptr;            // [N]
    float *column_scale = nullptr;    // [N]: what a column's sum is multiplied by, where weights are rounded
    float *column_sum = nullptr;      // [N], INT8: Σₖ weight, takes the activations' zero point out again
    float *inverse_smooth = nullptr;  // [K], INT8: activations are multiplied by this before they are rounded
    const float *moments = nullptr;   // [K], BFLOAT16, while `pack` runs: the mean square of each input, or null
    const int *exact = nullptr;       // [num_exact], BFLOAT16: inputs that are two numbers each, and so are their weights
    int num_exact = 0;
};

// Rows as a product reads them that is not FLOAT. INT8: x ≈ scale · (q − zero). BFLOAT16: after the K numbers come the
// second numbers of exact inputs, then their first ones again, then zeros; memory is for whole squares of 16 rows.
struct Rounded {
    const void *q;  // uint8 or int16; bfloat16, or float32 where the processor has no bfloat16; [rows, ld]
    long ld;        // in elements: depth_of(linear)
    float *scale;   // [rows], INT8
    float *zero;    // [rows], INT8, a whole number
};

// A bfloat16 row is this long: the matrix unit takes 32 numbers at a step.
inline int depth_of(int K) { return (K + 31) / 32 * 32; }
inline int depth_of(const Linear &linear) {
    return linear.kind == BFLOAT16 ? depth_of(linear.K + 2 * linear.num_exact) : linear.K;
}

// Where answers go, [rows, ld]: float32, or bfloat16 (`half`) for a reader that takes it so, zeros from N to ld.
struct Output {
    void *data;
    long ld;
    bool half;
};

struct Kernels {
    const char *name;
    const char *bfloat16;  // the instructions for it; null: float32's, over rounded numbers
    bool half;             // bfloat16 lies in 16 bits, and `attend_half` is there
    int tile;              // columns to a tile
    long (*tiles_bytes)(const Linear *linear);
    // One tile of a weight [N, K], row-major.
    void (*pack)(const float *weight, Linear *linear, int tile);
    // For a linear that is not FLOAT.
    void (*round_rows)(const float *x, long ldx, int first, int last, const Linear *linear, const Rounded *out);
    // Tiles [tile_first, tile_last) of rows [0, rows). x is used by a FLOAT linear, whose output is float32, rounded by
    // the others.
    void (*multiply)(const Linear *linear, const float *x, long ldx, const Rounded *rounded, int rows, int tile_first,
                     int tile_last, Output out, Epilogue epilogue, Activation activation, const float *residual,
                     long ldr);
    // inverses [rows]: one over each row's deviation; may be null.
    void (*layer_norm)(const float *x, long ldx, int first, int last, int width, int padded, const float *weight,
                       const float *bias, float eps, float *out, long ldo, float *inverses);
    // to = (word · step + position + type) · inverse + constant, N numbers each, N a multiple of 16. type may be null: zeros.
    // If `half`, `to` is bfloat16.
    void (*look_up)(const int16_t *word, float step, const float *position, const float *type, const float *constant,
                    float inverse, int N, void *to, bool half);
    // One head of one text. q, k, v: [length, ld]; out: [length, ldo]; scratch: attention_scratch floats. bias is null,
    // or points at what keys at distance 0 get added to their score before it is scaled: bias[key − query].
    void (*attend)(const float *q, const float *k, const float *v, long ld, int length, int head_width, float scale,
                   const float *bias, float *out, long ldo, float *scratch);
    // The same of bfloat16, in memory for 32 rows more; null where `half` is false.
    void (*attend_half)(const uint16_t *q, const uint16_t *k, const uint16_t *v, long ld, int length, int head_width,
                        float scale, const float *bias, Output out, float *scratch);
    long (*attention_scratch)(int length, int head_width);
};

extern const Kernels kernels_portable, kernels_tiles, kernels_pairs;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512, kernels_avx512_bf16, kernels_amx;
#elif defined(__aarch64__)
extern const Kernels kernels_neon_dotprod, kernels_neon_i8mm;
#endif

// The fastest of them here; BERTIE_CPU names a slower one.
const Kernels *best_kernels();
