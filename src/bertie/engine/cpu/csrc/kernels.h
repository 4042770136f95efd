// What every instruction set provides. One table of functions per set; dispatch.cpp picks one when a model is made.
#pragma once

#include <cstdint>

// C[M, N] = A[M, K] · B[K, N] (+ bias, then one of these)
enum Epilogue { PLAIN = 0, ACTIVATE = 1, RESIDUAL = 2 };
enum Activation { GELU_ERF = 0, GELU_TANH = 1, RELU = 2, GELU_COARSE = 3 };

// A weight matrix made ready: columns in tiles, each tile stored in the order in which it is read.
struct Linear {
    int K = 0, N = 0;               // multiples of 16
    bool int8 = false;
    void *tiles = nullptr;
    float *bias = nullptr;          // [N]
    float *column_scale = nullptr;  // [N], int8: a column's step
    float *column_sum = nullptr;    // [N], int8: Σₖ weight, takes the activations' zero point out again
    float *inverse_smooth = nullptr;  // [K], int8: activations are multiplied by this before they are rounded
};

// Rows rounded to eight bits: x ≈ scale · (q − zero).
struct Rounded {
    void *q;        // uint8 or int16, [rows, ld]
    long ld;        // in elements
    float *scale;   // [rows]
    float *zero;    // [rows], a whole number
};

struct Kernels {
    const char *name;
    int tile;        // columns to a tile
    long (*tiles_bytes)(int K, int N, bool int8);
    // One tile of a weight [N, K], row-major.
    void (*pack)(const float *weight, Linear *linear, int tile);
    void (*round_rows)(const float *x, long ldx, int first, int last, int K, const float *inverse_smooth, Rounded *out);
    // Tiles [tile_first, tile_last) of rows [row_first, row_last). x is used by a float linear, rounded by an int8 one.
    void (*multiply)(const Linear *linear, const float *x, long ldx, const Rounded *rounded, int row_first,
                     int row_last, int tile_first, int tile_last, float *out, long ldo, Epilogue epilogue,
                     Activation activation, const float *residual, long ldr);
    void (*layer_norm)(const float *x, long ldx, int first, int last, int width, int padded, const float *weight,
                       const float *bias, float eps, float *out, long ldo);
    // One head of one text. q, k, v: [length, ld]; out: [length, ldo]; scratch: attention_scratch floats.
    void (*attend)(const float *q, const float *k, const float *v, long ld, int length, int head_width, float scale,
                   float *out, long ldo, float *scratch);
    long (*attention_scratch)(int length, int head_width);
};

extern const Kernels kernels_portable, kernels_tiles;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_amx;
#endif

// The fastest of them here; BERTIE_CPU names a slower one.
const Kernels *best_kernels();
