// A model's weights, the memory that a chunk of tokens needs on its way through them, and what a call is about.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.h"
#include "team.h"

constexpr int FEED_FORWARD = 192;  // tokens whose wide inner state is held at once

// 64-byte aligned memory; large pieces in huge pages, since weights are read from end to end. Where there are several
// memory nodes, its pages are new, and come to lie on the node of the thread that first writes them. They are not shared
// with other pieces: so a huge page, which comes to lie on one node as a whole, never reaches into the next piece.
template <class T>
class Array {
  public:
    Array() = default;
    explicit Array(size_t count) { resize(count); }
    void resize(size_t count) {
        const size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096 + 4096;
        const bool huge = bytes >= (4u << 20);
        const size_t alignment = huge ? 2u << 20 : 64;
        void *made = nullptr;
#if defined(__linux__)
        if (num_nodes() > 1) {
            const size_t mapped = huge ? bytes / alignment * alignment + 2 * alignment : bytes;
            void *const start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (start == MAP_FAILED) throw std::bad_alloc();
            if (!huge) madvise(start, mapped, MADV_NOHUGEPAGE);
            made = reinterpret_cast<void *>(((uintptr_t)start + alignment - 1) / alignment * alignment);
            data_ = {static_cast<T *>(made), Free{start, mapped}};
        }
#endif
        if (!made) {
            if (posix_memalign(&made, alignment, bytes)) throw std::bad_alloc();
            data_ = {static_cast<T *>(made), Free{}};
        }
#if defined(__linux__)
        if (huge) madvise(made, bytes, MADV_HUGEPAGE);
#endif
        size_ = count;
    }
    T *get() const { return data_.get(); }
    size_t size() const { return size_; }

  private:
    struct Free {
        void *start = nullptr;  // of what was mapped; null: nothing was
        size_t mapped = 0;
        void operator()(T *p) const {
#if defined(__linux__)
            if (start) munmap(start, mapped);
#endif
            if (!start) std::free(p);
        }
    };
    std::unique_ptr<T, Free> data_;
    size_t size_ = 0;
};

inline Array<float> copied(const float *from, size_t count, size_t padded) {
    Array<float> made(padded);
    std::memset(made.get(), 0, padded * sizeof(float));
    std::memcpy(made.get(), from, count * sizeof(float));
    return made;
}

struct OwnedLinear {
    Linear view;
    Array<char> tiles;
    Array<float> bias, column_scale, column_sum, inverse_smooth;
    std::vector<int> exact;

    // The same with tiles in a node's own memory: by node, where teams of several nodes read it.
    struct Copy {
        Linear view;
        Array<char> tiles;
    };
    std::vector<Copy> copies;

    const Linear &on(int node) const {
        return node < (int)copies.size() && copies[node].view.tiles ? copies[node].view : view;
    }
};

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
    Array<float> x, y, scale, zero;
    Array<float> qkv, context, wide;  // or bfloat16, where what reads them takes it
    Array<float> rounded;             // large enough for any kind of activation
    Array<float> scratch;             // attention's, [members, each]
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

    // One whose memory lies on this node, or will when threads of the node write it. A member's attention needs `each`.
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
