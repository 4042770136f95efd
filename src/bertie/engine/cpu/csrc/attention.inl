// Attention of one head of one text: scores of some rows, their softmax, the values' sums by it; then the next rows.

long attention_scratch(int length, int head_width) {
    const long keys = std::max((length + TILE - 1) / TILE * TILE, depth_of(length));
    const long floats = 2 * keys * head_width + ROWS * keys;  // keys, values, scores
#if defined(BERTIE_HALF)  // attend_half says what these are
    const long halves = keys * depth_of(head_width) + keys * head_width + HALF_ROWS * keys;
    return std::max(floats, HALF_ROWS * (keys + TILE) + halves / 2);
#else
    return floats;
#endif
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

// One number of each vector [rows, WIDTH]: all its lanes joined, in a fixed order. WIDTH rows at a time, turned, so that no
// row waits for its own lanes. Whole squares are read and written.
template <F (*JOIN)(F, F)>
INLINE void across(const float *vectors, int rows, float *to) {
    alignas(64) float turned[WIDTH * WIDTH];
    for (int row = 0; row < rows; row += WIDTH) {
        turn_square(vectors + row * WIDTH, WIDTH, turned, WIDTH);
        F lanes[WIDTH];
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++) lanes[i] = load(turned + i * WIDTH);
#pragma GCC unroll 4
        for (int width = WIDTH / 2; width; width /= 2)
#pragma GCC unroll 8
            for (int i = 0; i < width; i++) lanes[i] = JOIN(lanes[i], lanes[i + width]);
        store(to + row, lanes[0]);
    }
}
INLINE F plus(F a, F b) { return a + b; }

// Gives put(r, j, e) the exponentials of scores [rows, ld], WIDTH at a time, zeros after the last of `length`; one over
// their sums goes to `inverse`. e^x = 2^(x·log₂e), which is in `factor`. A bias is added first; its table goes on for a
// vector's width. Whole squares of rows are written to `inverse`.
template <int ROWS_AT_MOST, F (*EXP2)(F), class Put>
INLINE void softmax(float *scores, long ld, int rows, int length, F factor, const float *bias, float *inverse, Put put) {
    constexpr int SQUARES = (ROWS_AT_MOST + WIDTH - 1) / WIDTH * WIDTH;
    alignas(64) float vectors[SQUARES * WIDTH], most[SQUARES];
    const long last = (length - 1) / WIDTH * WIDTH;  // where the keys past the end are, which count for nothing
    for (int r = 0; r < rows; r++) {
        float *s = scores + r * ld;
        if (bias)
            for (long j = 0; j <= last; j += WIDTH) store(s + j, load(s + j) + load(bias - r + j));
        F high = first_lanes(load(s + last), length - (int)last, splat(-3.0e38f));
        for (long j = 0; j < last; j += WIDTH) high = largest(high, load(s + j));
        store(vectors + r * WIDTH, high);
    }
    across<largest>(vectors, rows, most);
    for (int r = 0; r < rows; r++) {
        const float *s = scores + r * ld;
        const F highest = splat(most[r]) * factor;
        F total = F{};
        for (long j = 0; j < last; j += WIDTH) {
            const F e = EXP2(fma(load(s + j), factor, -highest));
            put(r, j, e);
            total = total + e;
        }
        const F end = first_lanes(EXP2(fma(load(s + last), factor, -highest)), length - (int)last, F{});
        put(r, last, end);
        store(vectors + r * WIDTH, total + end);
    }
    across<plus>(vectors, rows, inverse);
    for (int r = 0; r < rows; r += WIDTH) store(inverse + r, splat(1.f) / load(inverse + r));
}

void attend(const float *q, const float *k, const float *v, long ld, int length, int head_width, float scale,
            const float *bias, float *out, long ldo, float *scratch) {
    const long keys = (length + WIDTH - 1) / WIDTH * WIDTH;
    float *turned = scratch, *values = turned + (long)((length + TILE - 1) / TILE * TILE) * head_width;
    float *scores = values + (long)length * head_width;
    turn_keys(k, ld, length, head_width, turned);
    if (length > 64) {  // side by side: so many rows that lie far apart fall into too few sets of a cache
        for (int row = 0; row < length; row++)
            std::memcpy(values + (long)row * head_width, v + row * ld, head_width * sizeof(float));
        v = values;
    }
    const long ldv = v == values ? head_width : ld;
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
        float inverse[ROWS + WIDTH];
        softmax<ROWS, exp2_of>(scores, keys, rows, length, factor, bias ? bias - row : nullptr, inverse,
                               [=](int r, long j, F e) { store(scores + r * keys + j, e); });
        for (int column = 0; column < head_width; column += TILE) {
            const int left = head_width - column < TILE ? head_width - column : TILE, vectors = left / WIDTH;
            float *to = out + row * ldo + column;
            choose_product(rows, vectors)(length, scores, keys, v + column, ldv, to, ldo, false);
            for (int r = 0; r < rows; r++)
                for (int j = 0; j < left; j += WIDTH)
                    store(to + r * ldo + j, load(to + r * ldo + j) * inverse[r]);
        }
    }
}


#if defined(BERTIE_HALF)
// Keys as a product's B: [tiles of TILE keys][depth / 2][keys of the tile][2].
void turn_half_keys(const Half *k, long ld, int length, int head_width, Half *to) {
    const int pairs = depth_of(head_width) / 2;
    for (int from = 0; from < length; from += TILE) {
        const int left = length - from < TILE ? length - from : TILE;
        const int columns = (left + WIDTH - 1) / WIDTH * WIDTH;
        for (int block = 0; block < columns; block += WIDTH) {
            const int some = length - from - block < WIDTH ? length - from - block : WIDTH;
            const Half *rows = k + (long)(from + block) * ld;
            if (some == WIDTH && 2 * pairs == head_width) {  // a pair is as wide as a float
                for (int i = 0; i < pairs; i += WIDTH)
                    turn_square((const float *)(rows + 2 * i), ld / 2, (float *)to + (long)i * columns + block, columns);
                continue;
            }
            for (int i = 0; i < 2 * pairs; i++)
                for (int j = 0; j < WIDTH; j++)
                    to[((long)(i / 2) * columns + block + j) * 2 + i % 2] =
                        j < some && i < head_width ? rows[j * ld + i] : 0;
        }
        to += (long)columns * pairs * 2;
    }
}

// Values as a product's B: [tiles of TILE columns][keys / 2][columns][2], zeros from `length` to `keys`.
void pair_values(const Half *v, long ld, int length, int keys, int head_width, Half *to) {
    for (int from = 0; from < head_width; from += TILE) {
        const int columns = head_width - from < TILE ? head_width - from : TILE;
        for (int key = 0; key < keys; key += 2)
            for (int c = 0; c < columns; c += WIDTH) {
                H even = H{}, odd = H{};
                if (key < length) std::memcpy(&even, v + key * ld + from + c, sizeof even);
                if (key + 1 < length) std::memcpy(&odd, v + (key + 1) * ld + from + c, sizeof odd);
                const U both = __builtin_convertvector(even, U) | __builtin_convertvector(odd, U) << 16;
                std::memcpy(to + (long)key * columns + 2 * c, &both, sizeof both);
            }
        to += (long)keys * columns;
    }
}

void attend_half(const Half *q, const Half *k, const Half *v, long ld, int length, int head_width, float scale,
                 const float *bias, Output out, float *scratch) {
#if defined(BERTIE_TILES)
    const TileUnit unit(true);
#endif
    const int depth = depth_of(head_width), keys = depth_of(length), wide = (length + WIDTH - 1) / WIDTH * WIDTH;
    float *scores = scratch, *sums = scores + (long)HALF_ROWS * wide;     // [HALF_ROWS, wide], [HALF_ROWS, TILE]
    Half *turned = (Half *)(sums + HALF_ROWS * TILE);                     // [wide, depth]
    Half *values = turned + (long)wide * depth;                           // [keys, head_width]
    Half *weights = values + (long)keys * head_width;                     // [HALF_ROWS, keys]
    turn_half_keys(k, ld, length, head_width, turned);
    pair_values(v, ld, length, keys, head_width, values);
    const F factor = splat(scale * 1.4426950408889634f);
    for (int row = 0; row < length; row += HALF_ROWS) {
        const int rows = length - row < HALF_ROWS ? length - row : HALF_ROWS;
        const Half *tile = turned;
        for (int from = 0; from < wide; from += TILE) {
            const int columns = wide - from < TILE ? wide - from : TILE;
            half_product(rows, head_width, q + row * ld, ld, tile, columns, scores + from, wide);
            tile += (long)columns * depth;
        }
        float inverse[HALF_ROWS + WIDTH];
        softmax<HALF_ROWS, exp2_coarse>(scores, wide, rows, length, factor, bias ? bias - row : nullptr, inverse,
                                        [=](int r, long j, F e) { store_half(weights + (long)r * keys + j, e); });
        for (int r = 0; r < rows; r++)
            for (int j = wide; j < keys; j++) weights[(long)r * keys + j] = 0;
        for (int column = 0; column < head_width; column += TILE) {
            const int columns = head_width - column < TILE ? head_width - column : TILE;
            half_product(rows, (length + 1) / 2 * 2, weights, keys, values + (long)column * keys, columns, sums, TILE);
            for (int r = 0; r < rows; r++)
                for (int j = 0; j < columns; j += WIDTH) {
                    const F mean = load(sums + r * TILE + j) * inverse[r];
                    const long place = (row + r) * out.ld + column + j;
                    if (out.half)
                        store_half(static_cast<Half *>(out.data) + place, mean);
                    else
                        store(static_cast<float *>(out.data) + place, mean);
                }
        }
    }
}
#endif
