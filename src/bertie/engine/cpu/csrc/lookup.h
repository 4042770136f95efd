// The first layer's queries, keys and values, looked up instead of multiplied.
//
// The first product reads a LayerNorm of word + position + segment: (s − mean(s)) / σ(s) · γ + β. All of it but σ is linear
// in the three, so with P(e) = W · (γ ∘ (e − mean(e))) the product is
//
//     (P(word) + P(position) + P(segment)) / σ(s) + W · β + b
//
// P of positions and segments is multiplied when a model is made ready, P of a word when a text first has that word. It is
// kept as whole numbers of a step, each word's own: so it is off by 1/65,536 of the word's largest number at most. It is the
// same float32 product each time, so answers do not depend on what was read before.
#pragma once

#include <atomic>
#include <memory>

#include "owned.h"

class Lookup {
  public:
    static constexpr int WORDS = 24;  // found at once

    // What P is made of. `linear` is float32, without its bias; γ and β have its K numbers, zeros after `width` of them.
    struct Source {
        const Kernels *kernels;
        OwnedLinear linear;
        int width;
        Array<float> norm_weight, norm_bias;
        const float *words;  // [num_words, width]: the caller keeps it
        int64_t num_words;
    };

    // Positions may be null; the other tables have one row at least.
    Lookup(Source source, const float *bias, const float *positions, int64_t num_positions, const float *types,
           int64_t num_types);

    // P of a word: N numbers of this many steps.
    struct Word {
        const int16_t *numbers;
        float step;
    };

    // P of some words, at most WORDS. They are kept, or lie in `scratch`, which has `scratch_size` floats.
    void find(const int64_t *ids, int count, int node, float *scratch, Word *to);
    size_t scratch_size() const { return (size_t)WORDS * (source_.linear.view.K + 2 * source_.linear.view.N); }

    // One token's row, from find's `word`. `inverse` is 1 / σ of its sum.
    void row(Word word, int64_t position, int64_t type, float inverse, Output out, int64_t place) const {
        const size_t N = source_.linear.view.N;
        void *to = out.half ? (void *)(static_cast<uint16_t *>(out.data) + place) : static_cast<float *>(out.data) + place;
        source_.kernels->look_up(word.numbers, word.step, positions_.get() + (has_positions_ ? position * N : 0),
                                 type ? types_.get() + type * N : nullptr, constant_.get(), inverse, (int)N, to, out.half);
    }

  private:
    // P of the rows at `from`, or W times them as they are: [count, N] at `to`. centred: room for [count, K].
    void multiply(const float *const *from, int count, bool as_they_are, int node, float *centred, float *to) const;

    const Source source_;
    const bool has_positions_;
    Array<float> positions_;  // P(position) + P(segment 0)
    Array<float> types_;      // P(segment) − P(segment 0)
    Array<float> constant_;   // W · β + b
    Array<int16_t> words_;
    Array<float> steps_;
    enum State : uint8_t { NOT_YET, BEING_WRITTEN, THERE };
    std::unique_ptr<std::atomic<uint8_t>[]> states_;  // of each word
};
