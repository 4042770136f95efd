// The library's whole interface: plain C, plain pointers.

#include "model.h"

namespace {

// What rounding has to know of a product's inputs: INT8 has inverse_smooth [K], BFLOAT16 may have the rest.
struct Inputs {
    const float *inverse_smooth = nullptr, *moments = nullptr;
    const int *exact = nullptr;
    int num_exact = 0;
};

// Each node's threads read their own tiles from now on, and the first ones, which lie anywhere, are freed.
void copy_to_nodes(OwnedLinear &owned) {
    std::vector<OwnedLinear::Copy> copies(num_nodes());
    for (OwnedLinear::Copy &copy : copies) copy.tiles.resize(owned.tiles.size());
    on_each_node([&](int node) {
        copies[node].view = owned.view;
        copies[node].view.tiles = copies[node].tiles.get();
        std::memcpy(copies[node].tiles.get(), owned.tiles.get(), owned.tiles.size());
    });
    for (const OwnedLinear::Copy &copy : copies)
        if (copy.view.tiles) owned.view.tiles = copy.view.tiles;
    owned.tiles = Array<char>();
    owned.copies = std::move(copies);
}

// A product made ready.
void fill(Model &model, OwnedLinear &owned, Kind kind, int K, int N, const float *weight, const float *bias,
          const Inputs &inputs, int threads) {
    owned = OwnedLinear();
    owned.bias = copied(bias, N, N);
    owned.view.K = K;
    owned.view.N = N;
    owned.view.kind = kind;
    owned.view.bias = owned.bias.get();
    if (kind != FLOAT) {
        owned.column_scale.resize(N);
        owned.view.column_scale = owned.column_scale.get();
    }
    if (kind == INT8) {
        owned.inverse_smooth = copied(inputs.inverse_smooth, K, K);
        owned.column_sum.resize(N);
        owned.view.inverse_smooth = owned.inverse_smooth.get();
        owned.view.column_sum = owned.column_sum.get();
    }
    if (kind == BFLOAT16) {
        owned.exact.assign(inputs.exact, inputs.exact + inputs.num_exact);
        owned.view.exact = owned.exact.data();
        owned.view.num_exact = inputs.num_exact;
        owned.view.moments = inputs.moments;
    }
    owned.tiles.resize(model.kernels->tiles_bytes(&owned.view));
    owned.view.tiles = owned.tiles.get();
    const int tiles = (N + model.kernels->tile - 1) / model.kernels->tile;
    std::atomic<int> next{0};
    run_team(Team(threads), [&](int, int) {
        for (int tile; (tile = next.fetch_add(1)) < tiles;) model.kernels->pack(weight, &owned.view, tile);
    });
    owned.view.moments = nullptr;  // the caller's
    if (Team::spans(threads)) copy_to_nodes(owned);
}

}  // namespace

extern "C" {

#define API __attribute__((visibility("default")))

API int bertie_version() { return 13; }
API const char *bertie_instruction_set() { return best_kernels()->name; }
// The instructions that multiply bfloat16; null where float32's do it, over rounded numbers.
API const char *bertie_bfloat16() { return best_kernels()->bfloat16; }

// The memory node of each core, numbered from 0: nodes [cores]. Before the first model; where it is not called, there is one.
API void bertie_nodes(const int *nodes, int cores) {
    try {
        set_nodes(nodes, cores);
    } catch (const std::bad_alloc &) {  // then there is one
    }
}

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

// Weights of one layer: heads with their numbers in the model before pruning, and the two LayerNorms ([width] each).
API int bertie_layer(void *handle, int number, int heads, const int *numbers, const float *weight1, const float *bias1,
                     const float *weight2, const float *bias2) {
    try {
        Model *model = static_cast<Model *>(handle);
        Layer &layer = model->layers[number];
        layer.heads = heads;
        layer.numbers.assign(numbers, numbers + heads);
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
        fill(*model, model->project, FLOAT, K, N, weight, bias, {}, threads);
        return 0;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

// An attention bias that all layers share, by key − query from 1 − longest on: table [heads, 2 · longest − 1], divided
// by the scale of scores. Before the first forward; a layer's heads take the rows of their numbers.
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

// weight [N, K], bias [N], K and N multiples of 16, 0 too. kind as in kernels.h. INT8 takes inverse_smooth [K]. BFLOAT16
// takes the mean square of each input, moments [K], or null, and exact [num_exact], at most 16 inputs of QKV or of UP.
API int bertie_linear(void *handle, int number, int which, int kind, int K, int N, const float *weight,
                      const float *bias, const float *inverse_smooth, const float *moments, const int *exact, int num_exact,
                      int threads) {
    try {
        Model *model = static_cast<Model *>(handle);
        if (number == 0 && which == QKV) model->lookup.reset();
        fill(*model, model->layers[number].linear[which], static_cast<Kind>(kind), K, N, weight, bias,
             {inverse_smooth, moments, exact, num_exact}, threads);
        model->most_wide = std::max(model->most_wide, which == UP ? N : 0);
        return 0;
    } catch (const std::bad_alloc &) {
        return 1;
    }
}

// In place of the first layer's QKV: its answers are looked up (lookup.h), which takes 2 · N bytes for each word of the
// table that is ever read. After bertie_rows, for a model without a projection. `kind` is not FLOAT: how its answers are
// rounded for attention.
API int bertie_lookup(void *handle, int kind, int K, int N, const float *weight, const float *bias, int threads) {
    try {
        Model *model = static_cast<Model *>(handle);
        Lookup::Source source{model->kernels, {}, model->width, copied(model->norm_weight.get(), model->width, K),
                              copied(model->norm_bias.get(), model->width, K), model->words, model->num_words};
        const std::vector<float> none(N);
        fill(*model, source.linear, FLOAT, K, N, weight, none.data(), {}, threads);
        model->lookup = std::make_unique<Lookup>(std::move(source), bias, model->positions, model->num_positions,
                                                 model->types, model->num_types);
        model->layers[0].linear[QKV] = OwnedLinear();
        model->layers[0].linear[QKV].view.kind = static_cast<Kind>(kind);
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

// What the inputs of every product of a FLOAT model are like over these texts, all of segment 0: their squares are added
// to sums [layers, 4, stride]. A product that has fewer inputs than `stride` leaves the rest as it is.
API int bertie_squares(void *handle, const int64_t *ids, const int64_t *positions, const int32_t *ends, int texts,
                       float *sums, long stride) {
    const Batch batch{ids, nullptr, positions, ends, nullptr, nullptr, false, {}, ends[texts], nullptr, sums, stride};
    return forward(*static_cast<Model *>(handle), batch, texts, 1);
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
