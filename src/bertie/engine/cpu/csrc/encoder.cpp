// BERT's embeddings and layers over a packed batch, in one call.
//
// The texts of a batch are cut into chunks of about CHUNK tokens, whole texts only. A chunk goes through all layers by
// itself, so its states stay in a core's own cache and threads never wait for one another. When there are fewer chunks
// than threads (one short text, say, or the last of a batch) a group of threads shares each: they split every product's
// columns, every row of a LayerNorm, every head, and meet at a barrier in between.
//
// The functions at the end are the library's whole interface: plain C, plain pointers.

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.h"
#include "team.h"

namespace {

constexpr int CHUNK = 192;         // tokens that go through the layers together, where there are many
constexpr int LEAST_CHUNK = 64;    // and where there are few, so that every thread has some of its own
constexpr int FEED_FORWARD = 192;  // tokens whose wide inner state is held at once

// 64-byte aligned memory; large pieces in huge pages, since weights are read from end to end.
template <class T>
class Array {
  public:
    Array() = default;
    explicit Array(size_t count) { resize(count); }
    void resize(size_t count) {
        const size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096 + 4096;
        const size_t alignment = bytes >= (4u << 20) ? (2u << 20) : 64;
        void *made = nullptr;
        if (posix_memalign(&made, alignment, bytes)) throw std::bad_alloc();
#if defined(__linux__)
        if (bytes >= (4u << 20)) madvise(made, bytes, MADV_HUGEPAGE);
#endif
        data_.reset(static_cast<T *>(made));
        size_ = count;
    }
    T *get() const { return data_.get(); }
    size_t size() const { return size_; }

  private:
    struct Free {
        void operator()(T *p) const { std::free(p); }
    };
    std::unique_ptr<T, Free> data_;
    size_t size_ = 0;
};

Array<float> copied(const float *from, size_t count, size_t padded) {
    Array<float> made(padded);
    std::memset(made.get(), 0, padded * sizeof(float));
    std::memcpy(made.get(), from, count * sizeof(float));
    return made;
}

struct OwnedLinear {
    Linear view;
    Array<char> tiles;
    Array<float> bias, column_scale, column_sum, inverse_smooth;
};

enum { QKV = 0, OUT = 1, UP = 2, DOWN = 3 };

struct Layer {
    int heads = 0;
    OwnedLinear linear[4];
    Array<float> norm_weight[2], norm_bias[2];  // after attention, after feed-forward
};

// How wide the rows of an int8 product were, from their smallest to their largest value.
struct Width {
    std::atomic<float> widest{0};
    float limit = INFINITY;  // a wider row is outside of what the rounding was fitted to
};

// Everything a chunk needs on its way.
struct Workspace {
    Array<float> x, y, scale, zero;
    Array<float> qkv, context, wide;  // or bfloat16, where what reads them takes it
    Array<float> rounded;             // large enough for any kind of activation
    Array<float> scratch;             // attention's, a part for each member
    int rows = 0;
};

struct Model {
    const Kernels *kernels = nullptr;
    int width = 0, padded = 0;  // hidden size, and rounded up to 16
    int head_width = 0;         // rounded up to 16
    float scale = 1, eps = 1e-12f;
    Activation activation = GELU_ERF;
    int64_t num_words = 0, num_positions = 0, num_types = 0;  // rows of the tables
    const float *words = nullptr, *positions = nullptr, *types = nullptr;  // the caller keeps them; positions may be null
    Array<float> norm_weight, norm_bias;
    int table_width = 0;               // of the tables; other than width where a projection follows them
    OwnedLinear project;               // [padded, table_width rounded up]; no tiles where there is none
    Array<float> bias;                 // [heads, bias_stride]: an attention bias by distance, which all layers share
    long bias_stride = 0, longest = 0;  // distance 0 is at longest − 1
    std::vector<Layer> layers;
    std::unique_ptr<Width[]> widths;       // [layers · 4]
    std::atomic<int64_t> texts_outside{0};  // since the model was made
    int most_qkv = 0, most_context = 0, most_wide = 0, most_input = 0;
    std::vector<std::unique_ptr<Workspace>> idle;  // guarded by across_forks

    std::unique_ptr<Workspace> take(int rows, size_t scratch) {
        std::unique_ptr<Workspace> found;
        {
            std::lock_guard<std::mutex> lock(across_forks);
            if (!idle.empty()) {
                found = std::move(idle.back());
                idle.pop_back();
            }
        }
        if (!found) found = std::make_unique<Workspace>();
        if (found->rows < rows) {
            const size_t squares = rows + 32;  // bfloat16's products read whole ones
            found->rows = rows;
            found->x.resize((size_t)rows * padded);
            found->y.resize((size_t)rows * padded);
            found->qkv.resize(squares * most_qkv);
            found->context.resize(squares * depth_of(most_context));
            found->wide.resize((size_t)FEED_FORWARD * depth_of(most_wide));
            found->scale.resize(rows);
            found->zero.resize(rows);
            found->rounded.resize(std::max(squares * depth_of(most_input), (size_t)FEED_FORWARD * depth_of(most_wide)));
        }
        if (found->scratch.size() < scratch) found->scratch.resize(scratch);
        return found;
    }
    void give_back(std::unique_ptr<Workspace> workspace) {
        std::lock_guard<std::mutex> lock(across_forks);
        if (idle.size() < 64) idle.push_back(std::move(workspace));
    }
};

// Of each text, from its token `starts` on, `counts` tokens become one vector for each mode; the first of them is the
// text's `positions`-th where a text has several rows.
enum Mode { FIRST = 0, MAXIMUM = 1, SUM = 2, WEIGHTED_SUM = 3, LAST = 4 };
struct Pooled {
    const int64_t *starts, *counts, *positions;  // [texts]
    const int32_t *modes;
    int num_modes;
    float *vectors;  // [texts, modes, width], or null
};

struct Batch {
    const int64_t *ids, *types, *positions;  // types and positions may be null: 0, and a text's own 0, 1, 2, …
    const int32_t *ends;                     // [texts + 1]
    void *out;                               // [tokens, width], or null
    void *states;                            // [layers + 1, tokens, width], or null
    bool half;                               // whether the two are bfloat16
    Pooled pooled;
    int tokens;
    std::atomic<bool> *outside;              // [texts]: whether a row of this text was wider than its product's limit
};

struct Chunk {
    int first_text, last_text, first_token, tokens, longest;
};

// One member of a team on its way through a chunk.
struct Walk {
    Model &model;
    const Batch &batch;
    const Chunk &chunk;
    Workspace &space;
    float *scratch;  // attention's, this member's own
    Barrier &barrier;
    int member, size;

    // This member's share of `count` things.
    int begin(int count) const { return (int)((long)count * member / size); }
    int end(int count) const { return (int)((long)count * (member + 1) / size); }

    // Rows [from, from + rows) of the chunk. `half`: x is bfloat16 already, as a BFLOAT16 product reads it.
    void product(size_t layer, int which, const void *x, long ldx, bool half, int from, int rows, Output out,
                 Epilogue epilogue, const float *residual, long ldr, Activation activation = RELU) {
        const Linear &linear = model.layers[layer].linear[which].view;
        const Kernels &kernels = *model.kernels;
        const float *floats = static_cast<const float *>(x);
        Rounded rounded{x, ldx, space.scale.get(), space.zero.get()};
        if (linear.kind != FLOAT && !half) {
            rounded.q = space.rounded.get();
            rounded.ld = linear.kind == INT8 ? linear.K : depth_of(linear.K);
            kernels.round_rows(floats, ldx, begin(rows), end(rows), &linear, &rounded);
            if (linear.kind == INT8) watch(model.widths[4 * layer + which], from, begin(rows), end(rows));
            barrier.wait(size);
        }
        const int tiles = (linear.N + kernels.tile - 1) / kernels.tile;
        kernels.multiply(&linear, floats, ldx, &rounded, rows, begin(tiles), end(tiles), out, epilogue, activation,
                         residual, ldr);
        barrier.wait(size);
    }

    // A row's step is known by now, and is wide where the row is: one comparison for K numbers rounded.
    void watch(Width &width, int from, int first, int last) {
        const float *scale = space.scale.get();
        float most = 0;
        for (int row = first; row < last; row++) most = std::max(most, 255 * scale[row]);
        float known = width.widest.load(std::memory_order_relaxed);
        while (most > known && !width.widest.compare_exchange_weak(known, most, std::memory_order_relaxed)) {
        }
        if (!(most > width.limit)) return;
        for (int row = first, text = chunk.first_text; row < last; row++) {
            while (batch.ends[text + 1] <= chunk.first_token + from + row) text++;
            if (255 * scale[row] > width.limit) batch.outside[text].store(true, std::memory_order_relaxed);
        }
    }

    void norm(const Array<float> &weight, const Array<float> &bias, const float *from, float *to) {
        norm(weight, bias, from, to, model.width, model.padded);
    }

    void norm(const Array<float> &weight, const Array<float> &bias, const float *from, float *to, int width, int padded) {
        model.kernels->layer_norm(from, padded, begin(chunk.tokens), end(chunk.tokens), width, padded, weight.get(),
                                  bias.get(), model.eps, to, padded);
        barrier.wait(size);
    }

    void embed() {
        const bool projected = model.project.view.tiles != nullptr;
        const int width = model.table_width, padded = (width + 15) / 16 * 16;
        float *sums = projected ? space.x.get() : space.y.get(), *normal = projected ? space.y.get() : space.x.get();
        int text = chunk.first_text;
        for (int row = begin(chunk.tokens); row < end(chunk.tokens); row++) {
            const int token = chunk.first_token + row;
            while (batch.ends[text + 1] <= token) text++;
            const float *word = model.words + batch.ids[token] * width;
            const float *type = model.types + (batch.types ? batch.types[token] : 0) * width;
            float *to = sums + (long)row * padded;
            if (model.positions) {
                const int64_t place = batch.positions ? batch.positions[token] : token - batch.ends[text];
                const float *position = model.positions + place * width;
                for (int i = 0; i < width; i++) to[i] = word[i] + type[i] + position[i];
            } else {
                for (int i = 0; i < width; i++) to[i] = word[i] + type[i];
            }
            for (int i = width; i < padded; i++) to[i] = 0;
        }
        // the same rows are this member's in `norm`
        norm(model.norm_weight, model.norm_bias, sums, normal, width, padded);
        if (!projected) return;
        const Linear &linear = model.project.view;
        const int tiles = (linear.N + model.kernels->tile - 1) / model.kernels->tile;
        model.kernels->multiply(&linear, normal, padded, nullptr, chunk.tokens, begin(tiles), end(tiles),
                                {space.x.get(), model.padded, false}, PLAIN, RELU, nullptr, 0);
        barrier.wait(size);
    }

    // Whether attention reads bfloat16, and whether the product after it, or after an activation, does.
    bool half_attention(const Layer &layer) const { return model.kernels->half && layer.linear[QKV].view.kind != FLOAT; }
    bool half_input(const Layer &layer, int which) const {
        return model.kernels->half && layer.linear[which].view.kind == BFLOAT16;
    }

    void attention(const Layer &layer, Output context) {
        const int wide = layer.heads * model.head_width, jobs = (chunk.last_text - chunk.first_text) * layer.heads;
        const bool half = half_attention(layer);
        const long ld = 3L * wide;
        for (int job = begin(jobs); job < end(jobs); job++) {
            const int text = chunk.first_text + job / layer.heads, head = job % layer.heads;
            const int length = batch.ends[text + 1] - batch.ends[text];
            const long row = batch.ends[text] - chunk.first_token, column = (long)head * model.head_width;
            const long place = row * context.ld + column;
            const float *bias =
                model.longest ? model.bias.get() + head * model.bias_stride + model.longest - 1 : nullptr;
            if (half) {
                const uint16_t *q = reinterpret_cast<const uint16_t *>(space.qkv.get()) + row * ld + column;
                uint16_t *halves = static_cast<uint16_t *>(context.data);
                float *floats = static_cast<float *>(context.data);
                const Output out{context.half ? (void *)(halves + place) : floats + place, context.ld, context.half};
                model.kernels->attend_half(q, q + wide, q + 2 * wide, ld, length, model.head_width, model.scale, bias,
                                           out, scratch);
                if (context.half && head == layer.heads - 1)
                    for (long i = row; i < row + length; i++)
                        for (long j = wide; j < context.ld; j++) halves[i * context.ld + j] = 0;
            } else {
                const float *q = space.qkv.get() + row * ld + column;
                model.kernels->attend(q, q + wide, q + 2 * wide, ld, length, model.head_width, model.scale, bias,
                                      static_cast<float *>(context.data) + place, context.ld, scratch);
            }
        }
        barrier.wait(size);
    }

    // y = x + bias: all that is left of attention without heads, or of feed-forward without neurons.
    void add_bias(const OwnedLinear &linear, const float *x, float *y) {
        const float *bias = linear.bias.get();
        for (int row = begin(chunk.tokens); row < end(chunk.tokens); row++)
            for (long i = (long)row * model.padded, column = 0; column < model.padded; i++, column++)
                y[i] = x[i] + bias[column];
        // the same rows are this member's in `norm`
    }

    // What is rounded to eight bits next need not be exact before.
    Activation activation(const Layer &layer) const {
        return model.activation == GELU_ERF && layer.linear[DOWN].view.kind == INT8 ? GELU_COARSE : model.activation;
    }

    // State number `state` of all that `to` has room for.
    void give(void *to, size_t state) {
        for (int row = begin(chunk.tokens); row < end(chunk.tokens); row++) {
            const float *from = space.x.get() + (long)row * model.padded;
            const size_t place = (state * batch.tokens + chunk.first_token + row) * model.width;
            if (!batch.half) {
                std::memcpy(static_cast<float *>(to) + place, from, model.width * sizeof(float));
                continue;
            }
            uint16_t *halves = static_cast<uint16_t *>(to) + place;
            for (int i = 0; i < model.width; i++) {
                uint32_t bits;
                std::memcpy(&bits, from + i, 4);
                halves[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // the nearest, ties to even
            }
        }
    }

    // Tokens are added up one after the other: the same bits in any company.
    void pool() {
        const Pooled &pooled = batch.pooled;
        const int texts = chunk.last_text - chunk.first_text, width = model.width;
        for (int text = chunk.first_text + begin(texts); text < chunk.first_text + end(texts); text++) {
            const int64_t count = pooled.counts[text], begins = batch.ends[text] - chunk.first_token;
            const float *first = space.x.get() + (begins + pooled.starts[text]) * model.padded;
            for (int mode = 0; mode < pooled.num_modes; mode++) {
                float *to = pooled.vectors + ((size_t)text * pooled.num_modes + mode) * width;
                const int which = pooled.modes[mode];
                const float *one = which == LAST ? first + (count - 1) * model.padded : first;
                std::fill(to, to + width, which == MAXIMUM ? -FLT_MAX : 0.f);
                if (!count) continue;
                if (which == FIRST || which == LAST) std::copy(one, one + width, to);
                for (int64_t token = 0; token < count && which != FIRST && which != LAST; token++) {
                    const float *from = first + token * model.padded;
                    const float weight = which == WEIGHTED_SUM ? (float)(pooled.positions[text] + token + 1) : 1;
                    if (which == MAXIMUM)
                        for (int i = 0; i < width; i++) to[i] = from[i] > to[i] || from[i] != from[i] ? from[i] : to[i];
                    else
                        for (int i = 0; i < width; i++) to[i] += from[i] * weight;
                }
            }
        }
    }

    void run() {
        const int rows = chunk.tokens;
        const long padded = model.padded;
        float *x = space.x.get(), *y = space.y.get();
        embed();
        if (batch.states) give(batch.states, 0);
        for (size_t number = 0; number < model.layers.size(); number++) {
            const Layer &layer = model.layers[number];
            const int wide = layer.heads * model.head_width, inner = layer.linear[UP].view.N;
            if (layer.heads) {
                const bool half = half_input(layer, OUT);
                const Output context{space.context.get(), half ? depth_of(wide) : wide, half};
                product(number, QKV, x, padded, false, 0, rows, {space.qkv.get(), 3L * wide, half_attention(layer)},
                        PLAIN, nullptr, 0);
                attention(layer, context);
                product(number, OUT, context.data, context.ld, half, 0, rows, {y, padded, false}, RESIDUAL, x, padded);
            } else {
                add_bias(layer.linear[OUT], x, y);
            }
            norm(layer.norm_weight[0], layer.norm_bias[0], y, x);
            if (!inner) add_bias(layer.linear[DOWN], x, y);
            const bool half = half_input(layer, DOWN);
            const Output hidden{space.wide.get(), half ? depth_of(inner) : inner, half};
            for (int from = 0; inner && from < rows; from += FEED_FORWARD) {
                const int some = std::min(FEED_FORWARD, rows - from);
                product(number, UP, x + from * padded, padded, false, from, some, hidden, ACTIVATE, nullptr, 0,
                        activation(layer));
                product(number, DOWN, hidden.data, hidden.ld, half, from, some, {y + from * padded, padded, false},
                        RESIDUAL, x + from * padded, padded);
            }
            norm(layer.norm_weight[1], layer.norm_bias[1], y, x);
            if (batch.states) give(batch.states, number + 1);
        }
        if (batch.out) give(batch.out, 0);
        if (batch.pooled.vectors) pool();
        barrier.wait(size);
    }
};

// Whether every row of a table that a batch names is there. The caller checks too; this is what keeps reads in bounds.
bool within(const int64_t *ids, int count, int64_t rows) {
    bool all = true;
    for (int i = 0; i < count; i++) all &= (uint64_t)ids[i] < (uint64_t)rows;
    return all;
}

bool in_tables(const Model &model, const Batch &batch, int texts) {
    bool positions = !model.positions || !batch.positions || within(batch.positions, batch.tokens, model.num_positions);
    for (int text = 0; text < texts && model.positions && !batch.positions; text++)
        positions &= batch.ends[text + 1] - batch.ends[text] <= model.num_positions;
    for (int text = 0; text < texts && model.longest; text++)
        positions &= batch.ends[text + 1] - batch.ends[text] <= model.longest;
    return positions && within(batch.ids, batch.tokens, model.num_words) &&
           (batch.types ? within(batch.types, batch.tokens, model.num_types) : model.num_types > 0);
}

// Whole texts, in their order, CHUNK tokens at most unless one text alone has more.
std::vector<Chunk> cut(const int32_t *ends, int texts, int threads) {
    const int most = std::min(CHUNK, std::max(LEAST_CHUNK, ends[texts] / (2 * threads)));
    std::vector<Chunk> chunks;
    for (int text = 0; text < texts; text++) {
        const int length = ends[text + 1] - ends[text];
        if (chunks.empty() || chunks.back().tokens + length > most) chunks.push_back({text, text, ends[text], 0, 0});
        Chunk &last = chunks.back();
        last.last_text = text + 1;
        last.tokens += length;
        last.longest = std::max(last.longest, length);
    }
    return chunks;
}

// How many of a team are worth having on one chunk. At every barrier all wait for the slowest, which on a large machine
// with other work on it is late by more than a small share of the work takes.
int useful(const Model &model, const Chunk &chunk, int size) {
    const int64_t share = 2 << 20;  // multiplications of one product, some 30 µs in eight bits
    const int64_t paying = (int64_t)chunk.tokens * model.padded * std::max(model.most_wide, model.padded) / share;
    return (int)std::max<int64_t>(1, std::min<int64_t>(paying, std::max(4, size / 2)));
}

// A product made ready. INT8 alone has an inverse_smooth.
void fill(Model &model, OwnedLinear &owned, Kind kind, int K, int N, const float *weight, const float *bias,
          const float *inverse_smooth, int threads) {
    owned = OwnedLinear();
    owned.bias = copied(bias, N, N);
    owned.view.K = K;
    owned.view.N = N;
    owned.view.kind = kind;
    owned.view.bias = owned.bias.get();
    if (kind == INT8) {
        owned.inverse_smooth = copied(inverse_smooth, K, K);
        owned.column_scale.resize(N);
        owned.column_sum.resize(N);
        owned.view.inverse_smooth = owned.inverse_smooth.get();
        owned.view.column_scale = owned.column_scale.get();
        owned.view.column_sum = owned.column_sum.get();
    }
    owned.tiles.resize(model.kernels->tiles_bytes(K, N, kind));
    owned.view.tiles = owned.tiles.get();
    const int tiles = (N + model.kernels->tile - 1) / model.kernels->tile;
    run_team(threads, [&](int member, int size) {
        for (int tile = member; tile < tiles; tile += size) model.kernels->pack(weight, &owned.view, tile);
    });
}

// All chunks of a batch, by a team; bertie_forward says what comes back.
int forward(Model &model, Batch batch, int texts, int threads) {
    try {
        const std::unique_ptr<std::atomic<bool>[]> outside(new std::atomic<bool>[texts]());
        batch.outside = outside.get();
        if (!in_tables(model, batch, texts)) return 2;
        std::vector<Chunk> chunks = cut(batch.ends, texts, threads);
        int most = 0, longest = 0;
        for (const Chunk &chunk : chunks) {
            most = std::max(most, chunk.tokens);
            longest = std::max(longest, chunk.longest);
        }
        // Longest first, so that the last ones to finish are short.
        std::sort(chunks.begin(), chunks.end(), [](const Chunk &a, const Chunk &b) {
            return a.longest != b.longest ? a.longest > b.longest : a.first_token < b.first_token;
        });
        const int count = (int)chunks.size();
        const size_t scratch = (model.kernels->attention_scratch(longest, model.head_width) + 15) / 16 * 16;
        const std::unique_ptr<Barrier[]> meetings(new Barrier[threads]);
        std::vector<std::unique_ptr<Workspace>> spaces(threads);
        std::atomic<int> next{0};
        for (int i = 0; i < std::min(threads, count); i++) spaces[i] = model.take(most, i ? 0 : threads * scratch);
        run_team(threads, [&](int member, int size) {
            float *own = spaces[0]->scratch.get() + member * scratch;
            // Every member takes as many chunks as the others; groups of them share what then remains.
            const int rest = count % size, single = count - rest;
            for (int mine; (mine = next.fetch_add(1)) < single;)
                Walk{model, batch, chunks[mine], *spaces[member], own, meetings[0], 0, 1}.run();
            if (!rest) return;
            const int group = (int)((long)member * rest / size);
            const int first = (group * size + rest - 1) / rest, last = ((group + 1) * size + rest - 1) / rest;
            const Chunk &chunk = chunks[single + group];
            const int members = std::min(last - first, useful(model, chunk, size));
            if (member - first >= members) return;
            meetings[group].wait(members);  // the first of them may still be using its workspace
            Workspace &space = *spaces[single ? first : group];
            Walk{model, batch, chunk, space, own, meetings[group], member - first, members}.run();
        });
        for (auto &space : spaces)
            if (space) model.give_back(std::move(space));
        const int64_t found = std::count(outside.get(), outside.get() + texts, true);
        model.texts_outside.fetch_add(found, std::memory_order_relaxed);
        return found ? 3 : 0;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

}  // namespace

extern "C" {

#define API __attribute__((visibility("default")))

API int bertie_version() { return 8; }
API const char *bertie_instruction_set() { return best_kernels()->name; }
// The instructions that multiply bfloat16; null where float32's do it, over rounded numbers.
API const char *bertie_bfloat16() { return best_kernels()->bfloat16; }

API void *bertie_model_new(int width, int padded, int head_width, int layers, float scale, float eps, int activation,
                           const float *words, const float *positions, const float *types, const float *norm_weight,
                           const float *norm_bias) {
    try {
        auto model = std::make_unique<Model>();
        model->kernels = best_kernels();
        model->width = model->table_width = width;
        model->padded = padded;
        model->head_width = head_width;
        model->scale = scale;
        model->eps = eps;
        model->activation = static_cast<Activation>(activation);
        model->words = words;
        model->positions = positions;
        model->types = types;
        model->norm_weight = copied(norm_weight, width, padded);
        model->norm_bias = copied(norm_bias, width, padded);
        model->layers.resize(layers);
        model->widths.reset(new Width[4 * (size_t)layers]);
        return model.release();
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

API void bertie_model_free(void *model) { delete static_cast<Model *>(model); }

// How many rows the three tables have: before the first forward.
API void bertie_rows(void *handle, int64_t words, int64_t positions, int64_t types) {
    Model *model = static_cast<Model *>(handle);
    model->num_words = words;
    model->num_positions = positions;
    model->num_types = types;
}

// Weights of one layer: heads, and the two LayerNorms ([width] each).
API int bertie_layer(void *handle, int number, int heads, const float *weight1, const float *bias1,
                     const float *weight2, const float *bias2) {
    try {
        Model *model = static_cast<Model *>(handle);
        Layer &layer = model->layers[number];
        layer.heads = heads;
        layer.norm_weight[0] = copied(weight1, model->width, model->padded);
        layer.norm_bias[0] = copied(bias1, model->width, model->padded);
        layer.norm_weight[1] = copied(weight2, model->width, model->padded);
        layer.norm_bias[1] = copied(bias2, model->width, model->padded);
        model->most_qkv = std::max(model->most_qkv, 3 * heads * model->head_width);
        model->most_context = std::max(model->most_context, heads * model->head_width);
        model->most_input = std::max(std::max(model->padded, model->most_context), model->most_input);
        return 0;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

// Embeddings narrower than the layers: tables and norm of this width, then weight [N, K] and bias [N], where N is the
// layers' width and K this one, both rounded up to 16. Before the first forward.
API int bertie_projection(void *handle, int width, int K, int N, const float *weight, const float *bias,
                          const float *norm_weight, const float *norm_bias, int threads) {
    try {
        Model *model = static_cast<Model *>(handle);
        model->table_width = width;
        model->norm_weight = copied(norm_weight, width, K);
        model->norm_bias = copied(norm_bias, width, K);
        fill(*model, model->project, FLOAT, K, N, weight, bias, nullptr, threads);
        return 0;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

// An attention bias that all layers share, by key − query from 1 − longest on: table [heads, 2 · longest − 1], divided
// by the scale of scores. Before the first forward; every layer then has these heads.
API int bertie_bias(void *handle, int heads, int longest, const float *table) {
    try {
        Model *model = static_cast<Model *>(handle);
        const long distances = 2L * longest - 1;
        model->bias_stride = distances + 16;  // read a vector at a time
        model->bias = Array<float>((size_t)heads * model->bias_stride);
        std::memset(model->bias.get(), 0, (size_t)heads * model->bias_stride * sizeof(float));
        for (int head = 0; head < heads; head++)
            std::memcpy(model->bias.get() + head * model->bias_stride, table + head * distances,
                        distances * sizeof(float));
        model->longest = longest;
        return 0;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

// weight [N, K], bias [N], K and N multiples of 16, 0 too. kind as in kernels.h; INT8 takes inverse_smooth [K].
API int bertie_linear(void *handle, int number, int which, int kind, int K, int N, const float *weight,
                      const float *bias, const float *inverse_smooth, int threads) {
    try {
        Model *model = static_cast<Model *>(handle);
        fill(*model, model->layers[number].linear[which], static_cast<Kind>(kind), K, N, weight, bias, inverse_smooth,
             threads);
        model->most_wide = std::max(model->most_wide, which == UP ? N : 0);
        return 0;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

// How wide rows of the 4 · layers products may be before a text counts as outside: while no forward runs.
API void bertie_limits(void *handle, const float *limits) {
    Model *model = static_cast<Model *>(handle);
    for (size_t i = 0; i < 4 * model->layers.size(); i++) model->widths[i].limit = limits[i];
}

// How many texts were outside since the model was made, and the widest row of each product (0: it is no int8 product).
API int64_t bertie_outside(void *handle, float *widest) {
    Model *model = static_cast<Model *>(handle);
    for (size_t i = 0; i < 4 * model->layers.size(); i++) widest[i] = model->widths[i].widest.load();
    return model->texts_outside.load();
}

// 0 when done, 3 when done and texts were outside; 1 when memory ran out, 2 for ids that a table does not have.
// out and states are float32, or bfloat16 where `half` is not 0.
API int bertie_forward(void *handle, const int64_t *ids, const int64_t *types, const int64_t *positions,
                       const int32_t *ends, int texts, void *out, void *states, int half, int threads) {
    const Batch batch{ids, types, positions, ends, out, states, half != 0, {}, ends[texts], nullptr};
    return forward(*static_cast<Model *>(handle), batch, texts, threads);
}

// The same of texts of segment 0, each pooled: vectors [texts, modes, width] float32, sums where a mean is meant.
API int bertie_pooled(void *handle, const int64_t *ids, const int64_t *positions, const int32_t *ends, int texts,
                      const int64_t *starts, const int64_t *counts, const int64_t *weights, const int32_t *modes,
                      int num_modes, float *vectors, int threads) {
    const Pooled pooled{starts, counts, weights, modes, num_modes, vectors};
    const Batch batch{ids, nullptr, positions, ends, nullptr, nullptr, false, pooled, ends[texts], nullptr};
    return forward(*static_cast<Model *>(handle), batch, texts, threads);
}
}
