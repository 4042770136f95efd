// One member of a team on its way through a chunk: embeddings, layers, and what is given back.
#pragma once

#include <cfloat>

#include "model.h"

struct Chunk {
    int first_text, last_text, first_token, tokens, longest;
};

// One member of a team on its way through a chunk.
struct Walk {
    Model &model;
    const Batch &batch;
    const Chunk &chunk;
    Workspace &space;
    float *scratch;      // attention's, this member's own
    int node;            // this member's
    Meeting *meeting;    // null: this thread does it all
    int member = 0;
    int step = 0;

    // Does `count` things together with the other members, work(first, last) some of them, and returns when all are done.
    template <class Work>
    void share(int count, Work work) {
        if (meeting)
            meeting->share(step++, member, count, work);
        else
            work(0, count);
    }

    // How often `share` is called at most on the way through a model: what a meeting has to hold.
    static int steps(const Model &model, int tokens) {
        const int blocks = (tokens + FEED_FORWARD - 1) / FEED_FORWARD;
        return 5 + (int)model.layers.size() * (8 + 4 * blocks);
    }

    // Rows [from, from + rows) of the chunk. `half`: x is bfloat16 already, as a BFLOAT16 product reads it.
    void product(size_t layer, int which, const void *x, long ldx, bool half, int from, int rows, Output out,
                 Epilogue epilogue, const float *residual, long ldr, Activation activation = RELU) {
        const Linear &linear = model.layers[layer].linear[which].on(node);
        const Kernels &kernels = *model.kernels;
        const float *floats = static_cast<const float *>(x);
        Rounded rounded{x, ldx, space.scale.get(), space.zero.get()};
        if (batch.squares) add_squares(batch.squares + (4 * layer + which) * batch.stride, floats, ldx, rows, linear.K);
        if (linear.kind != FLOAT && !half) {
            rounded.q = space.rounded.get();
            rounded.ld = depth_of(linear);
            share(rows, [&](int first, int last) {
                kernels.round_rows(floats, ldx, first, last, &linear, &rounded);
                if (linear.kind == INT8) watch(model.widths[4 * layer + which], from, first, last);
            });
        }
        share((linear.N + kernels.tile - 1) / kernels.tile, [&](int first, int last) {
            kernels.multiply(&linear, floats, ldx, &rounded, rows, first, last, out, epilogue, activation, residual, ldr);
        });
    }

    // For whoever rounds this product's weights: one thread, float32.
    static void add_squares(float *sums, const float *x, long ldx, int rows, int K) {
        for (int row = 0; row < rows; row++)
            for (int k = 0; k < K; k++) sums[k] += x[row * ldx + k] * x[row * ldx + k];
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
        share(chunk.tokens, [&](int first, int last) {
            model.kernels->layer_norm(from, model.padded, first, last, model.width, model.padded, weight.get(),
                                      bias.get(), model.eps, to, model.padded, nullptr);
        });
    }

    // A token's place in its text, or the one that the batch names. `text` is its text or one before.
    int64_t place_of(int token, int *text) const {
        while (batch.ends[*text + 1] <= token) ++*text;
        return batch.positions ? batch.positions[token] : token - batch.ends[*text];
    }
    int64_t type_of(int token) const { return batch.types ? batch.types[token] : 0; }

    // The first layer's queries, keys and values of some rows, whose LayerNorm is done.
    void look_up(int first, int last) {
        Lookup &lookup = *model.lookup;
        const Output out = queries(model.layers[0]);
        Lookup::Word words[Lookup::WORDS];
        int text = chunk.first_text;
        for (int from = first; from < last; from += Lookup::WORDS) {
            const int some = std::min(Lookup::WORDS, last - from), token = chunk.first_token + from;
            lookup.find(batch.ids + token, some, node, scratch, words);
            for (int i = 0; i < some; i++)
                lookup.row(words[i], place_of(token + i, &text), type_of(token + i), space.inverse.get()[from + i], out,
                           (from + i) * out.ld);
        }
    }

    void embed() {
        const bool projected = model.project.view.tiles != nullptr;
        const int width = model.table_width, padded = (width + 15) / 16 * 16;
        float *sums = projected ? space.x.get() : space.y.get(), *normal = projected ? space.y.get() : space.x.get();
        share(chunk.tokens, [&](int first, int last) {
            int text = chunk.first_text;
            for (int row = first; row < last; row++) {
                const int token = chunk.first_token + row;
                const int64_t place = place_of(token, &text);
                const float *word = model.words + batch.ids[token] * width;
                const float *type = model.types + type_of(token) * width;
                float *to = sums + (long)row * padded;
                if (model.positions) {
                    const float *position = model.positions + place * width;
                    for (int i = 0; i < width; i++) to[i] = word[i] + type[i] + position[i];
                } else {
                    for (int i = 0; i < width; i++) to[i] = word[i] + type[i];
                }
                for (int i = width; i < padded; i++) to[i] = 0;
            }
            model.kernels->layer_norm(sums, padded, first, last, width, padded, model.norm_weight.get(),
                                      model.norm_bias.get(), model.eps, normal, padded, space.inverse.get());
            if (model.lookup) look_up(first, last);
        });
        if (!projected) return;
        const Linear &linear = model.project.on(node);
        share((linear.N + model.kernels->tile - 1) / model.kernels->tile, [&](int first, int last) {
            model.kernels->multiply(&linear, normal, padded, nullptr, chunk.tokens, first, last,
                                    {space.x.get(), model.padded, false}, PLAIN, RELU, nullptr, 0);
        });
    }

    // Whether attention reads bfloat16, and whether the product after it, or after an activation, does. What the last
    // layer rounds goes straight into the answer, which bfloat16 wants nearer to float32's than eight bits do.
    bool half_attention(const Layer &layer) const {
        const Kind kind = layer.linear[QKV].view.kind;
        return model.kernels->half && kind != FLOAT && !(kind == BFLOAT16 && &layer == &model.layers.back());
    }
    bool half_input(const Layer &layer, int which) const {
        return model.kernels->half && layer.linear[which].view.kind == BFLOAT16;
    }

    // Where a layer's queries, keys and values go.
    Output queries(const Layer &layer) const {
        return {space.qkv.get(), 3L * layer.heads * model.head_width, half_attention(layer)};
    }

    void attention(const Layer &layer, Output context) {
        const int wide = layer.heads * model.head_width, jobs = (chunk.last_text - chunk.first_text) * layer.heads;
        const bool half = half_attention(layer);
        const long ld = 3L * wide;
        share(jobs, [&](int first, int last) {
            for (int job = first; job < last; job++) {
                const int text = chunk.first_text + job / layer.heads, head = job % layer.heads;
                const int length = batch.ends[text + 1] - batch.ends[text];
                const long row = batch.ends[text] - chunk.first_token, column = (long)head * model.head_width;
                const long place = row * context.ld + column;
                const float *bias =
                    model.longest ? model.bias.get() + layer.numbers[head] * model.bias_stride + model.longest - 1 : nullptr;
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
        });
    }

    // y = x + bias: all that is left of attention without heads, or of feed-forward without neurons.
    void add_bias(const OwnedLinear &linear, const float *x, float *y) {
        const float *bias = linear.bias.get();
        share(chunk.tokens, [&](int first, int last) {
            for (int row = first; row < last; row++)
                for (long i = (long)row * model.padded, column = 0; column < model.padded; i++, column++)
                    y[i] = x[i] + bias[column];
        });
    }

    // What is rounded next need not be exact before.
    Activation activation(const Layer &layer) const {
        return model.activation == GELU_ERF && layer.linear[DOWN].view.kind != FLOAT ? GELU_COARSE : model.activation;
    }

    // State number `state` of all that `to` has room for.
    void give(void *to, size_t state) {
        share(chunk.tokens, [&](int first, int last) {
            for (int row = first; row < last; row++) {
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
        });
    }

    // Tokens are added up one after the other: the same bits in any company.
    void pool() {
        share(chunk.last_text - chunk.first_text,
              [&](int first, int last) { pool(chunk.first_text + first, chunk.first_text + last); });
    }

    void pool(int first_text, int last_text) {
        const Pooled &pooled = batch.pooled;
        const int width = model.width;
        for (int text = first_text; text < last_text; text++) {
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
                const bool half = half_attention(layer) && half_input(layer, OUT);
                const Output context{space.context.get(), half ? depth_of(wide) : wide, half};
                if (number || !model.lookup)
                    product(number, QKV, x, padded, false, 0, rows, queries(layer), PLAIN, nullptr, 0);
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
    }
};
