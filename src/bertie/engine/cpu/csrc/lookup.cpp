#include "lookup.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

Lookup::Lookup(Source source, const float *bias, const float *positions, int64_t num_positions, const float *types,
               int64_t num_types)
    : source_(std::move(source)), has_positions_(positions != nullptr) {
    const size_t K = source_.linear.view.K, N = source_.linear.view.N;
    std::vector<float> centred(WORDS * K);
    const auto all = [&](const float *table, int64_t rows, float *to) {
        const float *from[WORDS];
        for (int64_t first = 0; first < rows; first += WORDS) {
            const int some = (int)std::min<int64_t>(WORDS, rows - first);
            for (int i = 0; i < some; i++) from[i] = table + (first + i) * source_.width;
            multiply(from, some, false, 0, centred.data(), to + first * N);
        }
    };
    types_.resize(num_types * N);
    all(types, num_types, types_.get());
    const std::vector<float> first_type(types_.get(), types_.get() + N);
    for (size_t i = 0; i < num_types * N; i++) types_.get()[i] -= first_type[i % N];
    const int64_t places = has_positions_ ? num_positions : 1;
    positions_.resize(places * N);
    std::fill(positions_.get(), positions_.get() + places * N, 0.f);
    if (has_positions_) all(positions, places, positions_.get());
    for (size_t i = 0; i < places * N; i++) positions_.get()[i] += first_type[i % N];
    constant_.resize(N);
    const float *beta = source_.norm_bias.get();
    multiply(&beta, 1, true, 0, centred.data(), constant_.get());
    for (size_t i = 0; i < N; i++) constant_.get()[i] += bias[i];
    words_.resize(source_.num_words * N, Pages::SMALL);
    steps_.resize(source_.num_words);
    states_.reset(new std::atomic<uint8_t>[source_.num_words]());
}

void Lookup::multiply(const float *const *from, int count, bool as_they_are, int node, float *centred, float *to) const {
    const Linear &linear = source_.linear.on(node);
    const float *gamma = source_.norm_weight.get();
    for (int row = 0; row < count; row++) {
        const float *e = from[row];
        float *out = centred + (size_t)row * linear.K;
        double sum = 0;
        for (int i = 0; i < source_.width && !as_they_are; i++) sum += e[i];
        const float mean = (float)(sum / source_.width);
        for (int i = 0; i < source_.width; i++) out[i] = as_they_are ? e[i] : (e[i] - mean) * gamma[i];
        std::fill(out + source_.width, out + linear.K, 0.f);
    }
    const int tiles = (linear.N + source_.kernels->tile - 1) / source_.kernels->tile;
    source_.kernels->multiply(&linear, centred, linear.K, nullptr, count, 0, tiles, {to, linear.N, false}, PLAIN, RELU,
                              nullptr, 0);
}

void Lookup::find(const int64_t *ids, int count, int node, float *scratch, Word *to) {
    const size_t K = source_.linear.view.K, N = source_.linear.view.N;
    const float *rows[WORDS];
    int missing[WORDS], number = 0;
    for (int i = 0; i < count; i++) {
        if (states_[ids[i]].load(std::memory_order_acquire) == THERE) {
            to[i] = {words_.get() + ids[i] * N, steps_.get()[ids[i]]};
            for (size_t j = 0; j < N; j += 32) __builtin_prefetch(to[i].numbers + j);  // read as soon as all are found
            continue;
        }
        rows[number] = source_.words + ids[i] * source_.width;
        missing[number++] = i;
    }
    if (!number) return;
    float *found = scratch + WORDS * K;
    int16_t *rounded = reinterpret_cast<int16_t *>(found + WORDS * N);
    multiply(rows, number, false, node, scratch, found);
    for (int i = 0; i < number; i++) {
        const float *from = found + i * N;
        float most = 0;
        for (size_t j = 0; j < N; j++) most = std::max(most, std::fabs(from[j]));
        const float step = most > 0 ? most / 32767 : 1;
        for (size_t j = 0; j < N; j++) rounded[i * N + j] = (int16_t)std::lrintf(from[j] / step);
        const int64_t id = ids[missing[i]];
        to[missing[i]] = {rounded + i * N, step};
        uint8_t state = NOT_YET;
        if (!states_[id].compare_exchange_strong(state, BEING_WRITTEN)) continue;  // another thread writes the same numbers
        std::memcpy(words_.get() + id * N, rounded + i * N, N * sizeof(int16_t));
        steps_.get()[id] = step;
        states_[id].store(THERE, std::memory_order_release);
    }
}
