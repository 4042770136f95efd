// Products by AMX, the matrix unit of Intel's servers: squares of 16 rows by 16 columns, 64 bytes of k's at a step.
//
// A tile register holds 16 lines of 64 bytes: 16 rows of activations; or, of the weights as they lie for the vector unit
// already, 16 groups of four bytes (four k's, or two of bfloat16) for 16 columns; or 16 × 16 sums. Eight-bit sums are whole
// numbers, so those answers are the vector unit's in every bit, and rows or k's that do not fill a square are left to it.
// On a processor without AMX the same steps are taken by plain loops (kernels_tiles.cpp), for the tests.

constexpr int SQUARE = 16;

#if defined(__AMX_INT8__)

#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define TILE_DOT(half, sums, a, b)    \
    do {                              \
        if (half)                     \
            _tile_dpbf16ps(sums, a, b); \
        else                          \
            _tile_dpbusd(sums, a, b); \
    } while (0)
#define TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)

// The unit is a thread's own while this lives: all eight registers whole.
class TileUnit {
  public:
    explicit TileUnit(bool used) : used_(used) {
        if (!used_) return;
        alignas(64) uint8_t shape[64] = {1};  // palette 1, then 16-bit bytes to a line, then lines
        for (int tile = 0; tile < 8; tile++) {
            shape[16 + 2 * tile] = 64;
            shape[48 + tile] = SQUARE;
        }
        _tile_loadconfig(shape);
    }
    ~TileUnit() {
        if (used_) _tile_release();
    }

  private:
    bool used_;
};

#else

struct TileUnit {
    explicit TileUnit(bool) {}
};

union PlainTile {
    uint8_t bytes[SQUARE][64];
    int8_t weights[SQUARE][64];
    uint16_t halves[SQUARE][32];
    int32_t sums[SQUARE][SQUARE];
    float float_sums[SQUARE][SQUARE];
};
thread_local PlainTile plain_tiles[8];

void plain_dot(PlainTile &sums, const PlainTile &a, const PlainTile &b) {
    for (int m = 0; m < SQUARE; m++)
        for (int n = 0; n < SQUARE; n++)
            for (int k = 0; k < 64; k++) sums.sums[m][n] += a.bytes[m][k] * b.weights[k / 4][4 * n + k % 4];
}
float plain_float(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
void plain_dot_half(PlainTile &sums, const PlainTile &a, const PlainTile &b) {
    for (int m = 0; m < SQUARE; m++)
        for (int n = 0; n < SQUARE; n++) {
            float apart[2] = {0, 0};
            for (int k = 0; k < 32; k++)
                apart[k % 2] += plain_float(a.halves[m][k]) * plain_float(b.halves[k / 2][2 * n + k % 2]);
            sums.float_sums[m][n] += apart[0] + apart[1];
        }
}
void plain_lines(void *to, long to_stride, const void *from, long from_stride) {
    for (int line = 0; line < SQUARE; line++)
        std::memcpy((char *)to + line * to_stride, (const char *)from + line * from_stride, 64);
}

#define TILE_ZERO(tile) std::memset(&plain_tiles[tile], 0, sizeof(PlainTile))
#define TILE_LOAD(tile, from, stride) plain_lines(&plain_tiles[tile], 64, from, stride)
#define TILE_DOT(half, sums, a, b) \
    (half ? plain_dot_half : plain_dot)(plain_tiles[sums], plain_tiles[a], plain_tiles[b])
#define TILE_STORE(tile, to, stride) plain_lines(to, stride, &plain_tiles[tile], 64)

#endif

// sums[M · 16, N · 16] = A · B over `steps` of 64 bytes of k's. Strides are in bytes.
template <int M, int N, bool HALF>
INLINE void squares(int steps, const void *A, long lda, const void *B, long ldb, void *sums, long lds) {
    const char *a = static_cast<const char *>(A), *b = static_cast<const char *>(B);
    char *to = static_cast<char *>(sums);
    TILE_ZERO(0);
    if (N == 2) TILE_ZERO(1);
    if (M == 2) TILE_ZERO(2);
    if (M == 2 && N == 2) TILE_ZERO(3);
    for (int step = 0; step < steps; step++, a += 64, b += SQUARE * ldb) {
        TILE_LOAD(4, a, lda);
        TILE_LOAD(6, b, ldb);
        TILE_DOT(HALF, 0, 4, 6);
        if (N == 2) {
            TILE_LOAD(7, b + 64, ldb);
            TILE_DOT(HALF, 1, 4, 7);
        }
        if (M == 2) {
            TILE_LOAD(5, a + SQUARE * lda, lda);
            TILE_DOT(HALF, 2, 5, 6);
            if (N == 2) TILE_DOT(HALF, 3, 5, 7);
        }
    }
    TILE_STORE(0, to, lds);
    if (N == 2) TILE_STORE(1, to + 64, lds);
    if (M == 2) TILE_STORE(2, to + SQUARE * lds, lds);
    if (M == 2 && N == 2) TILE_STORE(3, to + SQUARE * lds + 64, lds);
}

// product_int8 for M · 16 rows and NS squares of 16 columns.
template <int M, int NS>
void product_tiles(int groups, const Quantum *A, long lda, const Weight *B, const float *scale, const float *zero,
                   const float *column_scale, const float *column_sum, const float *bias, float *C, long ldc) {
    alignas(64) int32_t sums[M * SQUARE * 64];
    constexpr int columns = NS * SQUARE;
    constexpr long ldb = columns * GROUP, line = 64 * sizeof(int32_t);
    const int steps = groups / SQUARE;
    for (int n = 0; n < NS; n += 2) {
        const Weight *b = B + n * SQUARE * GROUP;
        if (n + 1 < NS)
            squares<M, 2, false>(steps, A, lda, b, ldb, sums + n * SQUARE, line);
        else
            squares<M, 1, false>(steps, A, lda, b, ldb, sums + n * SQUARE, line);
    }
    for (int r = 0; r < M * SQUARE; r++)
        for (int c = 0; c < columns; c += WIDTH) {
            I sum;
            std::memcpy(&sum, sums + r * 64 + c, sizeof sum);
            for (int g = steps * SQUARE; g < groups; g++) {
                I b;
                int32_t lane;
                std::memcpy(&lane, A + r * lda + g * GROUP, 4);
                std::memcpy(&b, B + (long)g * ldb + c * GROUP, sizeof b);
                sum = dot(sum, splat_int(lane), b);
            }
            store(C + r * ldc + c, from_int8(sum, scale[r], zero[r], column_scale + c, column_sum + c, bias + c));
        }
}

template <int M>
ProductInt8 product_tiles_of(int vectors) {
    switch (vectors * WIDTH / SQUARE) {
        case 1: return product_tiles<M, 1>;
        case 2: return product_tiles<M, 2>;
        case 3: return product_tiles<M, 3>;
        default: return product_tiles<M, 4>;
    }
}
