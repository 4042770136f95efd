// A model's weights, the memory that a chunk of tokens needs on its way through them, and what a call is about.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lookup.h"
#include "owned.h"
#include "team.h"

constexpr int FEED_FORWARD = 192;  // tokens whose wide inner state is held at once

enum { QKV = 0, OUT = 1, UP = 2, DOWN = 3 };

struct Layer {
    int heads = 0;
    std::vector<int> numbers;  // of the heads, before any were pruned
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
    Array<float> x, y, scale, zero, inverse;
    Array<float> qkv, context, wide;  // or bfloat16, where what reads them takes it
    Array<float> rounded;             // large enough for any kind of activation
    Array<float> scratch;             // attention's and the lookup's, [members, each]
    size_t members = 0, each = 0;
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
    std::unique_ptr<Lookup> lookup;    // of the first layer's queries, keys and values; null: they are multiplied
    int table_width = 0;               // of the tables; other than width where a projection follows them
    OwnedLinear project;               // [padded, table_width rounded up]; no tiles where there is none
    Array<float> bias;                 // [heads, bias_stride]: an attention bias by distance, which all layers share
    long bias_stride = 0, longest = 0;  // distance 0 is at longest − 1
    std::vector<Layer> layers;
    std::unique_ptr<Width[]> widths;       // [layers · 4]
    std::atomic<int64_t> texts_outside{0};  // since the model was made
    Company company;
    int most_qkv = 0, most_context = 0, most_wide = 0, most_input = 0;
    std::map<int, std::vector<std::unique_ptr<Workspace>>> idle;  // by node; guarded by across_forks

    // One whose memory lies on this node, or will when threads of the node write it. A member needs `each` for itself.
    std::unique_ptr<Workspace> take(int node, int rows, size_t members, size_t each) {
        std::unique_ptr<Workspace> found;
        {
            std::lock_guard<std::mutex> lock(across_forks);
            if (!idle[node].empty()) {
                found = std::move(idle[node].back());
                idle[node].pop_back();
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
            found->inverse.resize(rows);
            found->rounded.resize(std::max(squares * (depth_of(most_input) + 32), (size_t)FEED_FORWARD * depth_of(most_wide)));
        }
        if (found->members < members || found->each < each) {
            found->members = std::max(found->members, members);
            found->each = std::max(found->each, each);
            found->scratch.resize(found->members * found->each);
        }
        return found;
    }
    void give_back(int node, std::unique_ptr<Workspace> workspace) {
        std::lock_guard<std::mutex> lock(across_forks);
        if (idle[node].size() < 64) idle[node].push_back(std::move(workspace));
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
    float *squares = nullptr;                // [layers, 4, stride], or null: sums of squares of every product's inputs
    long stride = 0;
};

// All texts of a batch through the model, by a team of threads; bertie_forward (interface.cpp) says what comes back.
int forward(Model &model, Batch batch, int texts, int threads);
