// Random calls of both C++ libraries, for the sanitizers to watch: sanitize_native.py builds and runs it.
//
//     sanitize_native SEED ROUNDS
//
// With an odd seed, the first two cores are on two memory nodes. A round makes a random model and a random vocabulary, calls
// each from several threads at once, and compares what comes back with what one thread got alone. It prints how many calls
// were made, and aborts where two answers differ.

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

extern "C" {
void bertie_nodes(const int *, int);
void *bertie_model_new(int, int, int, int, float, float, int, const float *, const float *, const float *, const float *,
                       const float *);
void bertie_model_free(void *);
void bertie_rows(void *, int64_t, int64_t, int64_t);
void bertie_limits(void *, const float *);
int64_t bertie_outside(void *, float *);
int bertie_layer(void *, int, int, const int *, const float *, const float *, const float *, const float *);
int bertie_linear(void *, int, int, int, int, int, const float *, const float *, const float *, const float *, const int *,
                  int, int);
int bertie_lookup(void *, int, int, int, const float *, const float *, int);
int bertie_squares(void *, const int64_t *, const int64_t *, const int32_t *, int, float *, long);
int bertie_projection(void *, int, int, int, const float *, const float *, const float *, const float *, int);
int bertie_bias(void *, int, int, const float *);
int bertie_forward(void *, const int64_t *, const int64_t *, const int64_t *, const int32_t *, int, void *, void *, int, int);
int bertie_pooled(void *, const int64_t *, const int64_t *, const int32_t *, int, const int64_t *, const int64_t *,
                  const int64_t *, const int32_t *, int, float *, int);
void *bertie_wordpiece_new(const char *, const int32_t *, int64_t, const char *, const char *, int64_t, int32_t, int32_t);
void bertie_wordpiece_free(void *);
void bertie_wordpiece_page(void *, int32_t, const void *);
int64_t bertie_wordpiece_encode(const void *, const char *, int64_t, const int64_t *, int64_t, const int64_t *, int64_t,
                                int64_t, int64_t *, int32_t *, int32_t *, int32_t *, int64_t, int64_t *, uint8_t *);
}

namespace {

std::mt19937 chance;
long calls = 0;

int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(chance); }
int padded(int size) { return (size + 15) / 16 * 16; }

// In memory of exactly this size, so that a step beyond its end is seen.
std::vector<float> numbers(size_t count, float spread, float middle = 0) {
    std::vector<float> made(count);
    std::normal_distribution<float> normal(middle, spread);
    for (float &value : made) value = normal(chance);
    return made;
}

// [rows, columns] in a rectangle of padded sizes, zeros around it, as the runner lays weights out.
std::vector<float> rectangle(int rows, int columns) {
    std::vector<float> made((size_t)padded(rows) * padded(columns));
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) made[(size_t)r * padded(columns) + c] = numbers(1, 0.1f)[0];
    return made;
}

void expect(bool held, const char *what) {
    if (held) return;
    std::fprintf(stderr, "FINDING: %s\n", what);
    std::abort();
}

struct Batch {
    std::vector<int64_t> ids, types, positions;
    std::vector<int32_t> ends{0};
};

void engine() {
    const int width = between(1, 90), heads = between(1, 4), head = between(1, 40), layers = between(1, 2);
    const int inner = between(1, 100), words = between(1, 50), places = between(1, 260);
    const int wide = heads * padded(head);
    const auto word = numbers((size_t)words * width, 1, between(0, 3) ? 0 : 100), type = numbers(2 * width, 1);
    const auto position = numbers((size_t)places * width, 1), weight = numbers(width, 0.2f, 1), bias = numbers(width, 1);
    void *model = bertie_model_new(width, padded(width), padded(head), layers, 1 / std::sqrt((float)head), 1e-12f,
                                   between(0, 2), word.data(), position.data(), type.data(), weight.data(), bias.data());
    bertie_rows(model, words, places, 2);
    const bool projected = !between(0, 2);
    if (projected) {  // embeddings narrower than the layers
        const int narrow = between(1, width);
        const auto matrix = rectangle(width, narrow), shift = numbers(padded(width), 0.1f);
        bertie_projection(model, narrow, padded(narrow), padded(width), matrix.data(), shift.data(), weight.data(),
                          bias.data(), between(1, 5));
    }
    if (!between(0, 2)) {  // a bias by distance
        const auto table = numbers((size_t)heads * (2 * places - 1), 0.5f);
        bertie_bias(model, heads, places, table.data());
    }
    std::vector<int> kept(heads);  // their numbers, as if others had been pruned
    for (int &number : kept) number = between(0, heads - 1);
    const bool half = !between(0, 2), exact = !half && !between(0, 2);  // bfloat16; float32 alone
    const std::vector<float> limits(4 * layers, (float)between(1, 60));
    bertie_limits(model, limits.data());
    for (int layer = 0; layer < layers; layer++) {
        bertie_layer(model, layer, heads, kept.data(), weight.data(), bias.data(), weight.data(), bias.data());
        const int shapes[4][2] = {{3 * wide, width}, {width, wide}, {inner, width}, {width, inner}};
        for (int which = 0; which < 4; which++) {
            const int rows = shapes[which][0], columns = shapes[which][1];
            const auto matrix = rectangle(rows, columns), shift = numbers(padded(rows), 0.1f);
            const std::vector<float> smooth(padded(columns), 1.5f);
            const int kind = half ? 2 : exact || between(0, 2) ? 0 : 1;  // of kernels.h
            if (!layer && !which && kind && !projected && between(0, 2)) {
                bertie_lookup(model, kind, padded(columns), padded(rows), matrix.data(), shift.data(), between(1, 5));
                continue;
            }
            std::vector<int> twice(half && which % 2 == 0 ? between(0, std::min(16, columns)) : 0);
            for (int &input : twice) input = between(0, columns - 1);
            bertie_linear(model, layer, which, kind, padded(columns), padded(rows), matrix.data(), shift.data(),
                          kind == 1 ? smooth.data() : nullptr, half && between(0, 1) ? smooth.data() : nullptr,
                          twice.data(), (int)twice.size(), between(1, 5));
        }
    }
    const int callers = between(1, 4), times = 3;
    std::vector<Batch> batches(callers);
    for (Batch &batch : batches) {
        for (int texts = between(1, between(0, 3) ? 4 : 40); texts; texts--) {
            const int length = between(1, between(0, 3) ? std::min(places, 40) : places);
            for (int k = 0; k < length; k++) {
                batch.ids.push_back(between(0, words - 1));
                batch.types.push_back(between(0, 1));
                batch.positions.push_back(between(0, places - 1));
            }
            batch.ends.push_back((int32_t)batch.ids.size());
        }
    }
    const bool typed = between(0, 1), placed = between(0, 1), all = between(0, 1), pooled = !between(0, 2);
    auto forward = [&](const Batch &batch, int threads) {
        const size_t size = batch.ids.size() * width, texts = batch.ends.size() - 1;
        std::vector<float> out(size), states(all ? size * (layers + 1) : 0);
        if (pooled) {  // two tokens of each text, from its second on
            std::vector<int64_t> starts(texts), counts(texts);
            for (size_t k = 0; k < texts; k++) {
                const int length = batch.ends[k + 1] - batch.ends[k];
                starts[k] = std::min(1, length - 1);
                counts[k] = std::min<int64_t>(2, length - starts[k]);
            }
            const int32_t modes[] = {0, 1, 2, 3, 4};
            out.assign(texts * 5 * width, 0);
            const int status = bertie_pooled(model, batch.ids.data(), placed ? batch.positions.data() : nullptr,
                                             batch.ends.data(), (int)texts, starts.data(), counts.data(), starts.data(),
                                             modes, 5, out.data(), threads);
            expect(status == 0 || status == 3, "no memory, or ids refused");
            return out;
        }
        const int status = bertie_forward(
            model, batch.ids.data(), typed ? batch.types.data() : nullptr, placed ? batch.positions.data() : nullptr,
            batch.ends.data(), (int)texts, out.data(), all ? states.data() : nullptr, half, threads);
        std::vector<float> widest(limits.size());
        expect(status == 0 || (status == 3 && bertie_outside(model, widest.data()) > 0), "no memory, or ids refused");
        return out;
    };
    std::vector<int> sizes(callers * times);
    for (int &size : sizes) size = between(1, 6);
    std::vector<std::thread> threads;
    for (int caller = 0; caller < callers; caller++)
        threads.emplace_back([&, caller] {
            const std::vector<float> alone = forward(batches[caller], 1);
            for (int k = 0; k < times; k++) {
                const std::vector<float> found = forward(batches[caller], sizes[caller * times + k]);
                expect(!std::memcmp(found.data(), alone.data(), alone.size() * sizeof(float)), "bits depend on threads");
            }
        });
    for (std::thread &thread : threads) thread.join();
    calls += (long)callers * (times + 1);
    if (exact) {
        const Batch &batch = batches[0];
        const long stride = padded(std::max(std::max(width, wide), inner));
        std::vector<float> sums(4 * layers * stride);
        expect(!bertie_squares(model, batch.ids.data(), batch.positions.data(), batch.ends.data(),
                               (int)batch.ends.size() - 1, sums.data(), stride),
               "no memory, or ids refused");
        expect(*std::min_element(sums.begin(), sums.end()) >= 0, "a sum of squares below 0");
        calls++;
    }
    bertie_model_free(model);
}

struct Entry {
    uint8_t kind, size, chars;
    char out[13];
};

std::string letter() {
    const int kind = between(0, 9);
    if (kind < 7) return std::string(1, (char)between('a', 'h'));
    return kind == 7 ? "\xc3\xa9" : kind == 8 ? "\xe4\xb8\xad" : "\xf0\x9f\x98\x80";
}

std::string word(int most) {
    std::string made;
    for (int k = between(1, most); k; k--) made += letter();
    return made;
}

void tokenizer() {
    std::string pieces, added, texts;
    std::vector<int32_t> ids;
    for (int count = between(0, 60); count; count--) {
        pieces += (between(0, 1) ? "##" : "") + word(between(1, 12)) + '\0';
        ids.push_back((int32_t)ids.size());
    }
    const int num_added = between(0, 5);
    for (int k = 0; k < num_added; k++) added += word(12) + '\0';
    void *vocabulary = bertie_wordpiece_new(pieces.data(), ids.data(), (int64_t)ids.size(), between(0, 3) ? "##" : "",
                                            added.data(), num_added, -7, between(1, 30));
    const int count = between(0, 12);
    for (int k = 0; k < count; k++) {
        for (int words = between(0, 20); words; words--) texts += word(between(0, 5) ? 10 : 60) + (between(0, 4) ? " " : "");
        texts += '\0';
    }
    const int64_t before[] = {1, 2}, after[] = {3};
    const int num_before = between(0, 2), num_after = between(0, 1);
    const int64_t capacity = between(0, 3) ? (int64_t)texts.size() + 3 * count : between(0, 20);
    const int64_t room = between(0, 1) ? INT64_MAX : between(1, 9);
    const bool traced = between(0, 1);
    std::vector<Entry> page(256);
    for (int code = 0; code < 256; code++) {
        const std::string made = letter();
        Entry &entry = page[code];
        entry = {};
        entry.kind = code == ' ' ? 2 : between(0, 9) ? 0 : (uint8_t)between(0, 3);
        entry.size = (uint8_t)made.size();
        entry.chars = 1;
        std::memcpy(entry.out, made.data(), made.size());
    }
    auto run = [&] {
        std::vector<int64_t> found(capacity), lengths(count);
        std::vector<int32_t> trace(traced ? 3 * capacity : 0);
        int32_t *rows[3] = {nullptr, nullptr, nullptr};
        for (int k = 0; traced && capacity && k < 3; k++) rows[k] = trace.data() + k * capacity;
        std::vector<uint8_t> wanted(0x110000 / 256);
        for (;;) {
            const int64_t used = bertie_wordpiece_encode(vocabulary, texts.data(), count, before, num_before, after,
                                                         num_after, room, found.data(), rows[0], rows[1], rows[2],
                                                         capacity, lengths.data(), wanted.data());
            bool lacks = false;
            for (size_t number = 0; used >= 0 && number < wanted.size(); number++)
                if (wanted[number]) {
                    bertie_wordpiece_page(vocabulary, (int32_t)number, page.data());
                    wanted[number] = 0;
                    lacks = true;
                }
            if (!lacks) {
                found.resize(used < 0 ? 0 : used);
                return found;
            }
        }
    };
    const int callers = between(1, 3);
    std::vector<std::vector<int64_t>> found(callers);
    std::vector<std::thread> threads;
    for (int caller = 0; caller < callers; caller++) threads.emplace_back([&, caller] { found[caller] = run(); });
    for (std::thread &thread : threads) thread.join();
    for (const auto &one : found) expect(one == run(), "ids differ between threads");
    calls += 2 * callers;
    bertie_wordpiece_free(vocabulary);
}

}  // namespace

int main(int, char **argv) {
    const int seed = std::atoi(argv[1]), nodes[] = {0, 1};
    chance.seed((unsigned)seed);
    if (seed % 2) bertie_nodes(nodes, 2);
    for (int round = std::atoi(argv[2]); round; round--) {
        engine();
        for (int k = 0; k < 4; k++) tokenizer();
    }
    std::printf("%ld\n", calls);
    std::fflush(stdout);
    // The pool's threads wait for work that never comes; they are no leak.
    _exit(0);
}
