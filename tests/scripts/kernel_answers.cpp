// Every kernel of the CPU engine against plain loops in double precision, over random sizes from 1 on.
//
//     kernel_answers SEED ROUNDS      compares, and prints the kernels' name and how many comparisons were made
//     kernel_answers time             microseconds of each kernel at all-MiniLM-L6-v2's sizes, one thread
//
// kernel_answers.py builds and runs it: here, under sanitizers, and for ARM by an emulator. BERTIE_CPU chooses kernels.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels.h"

namespace {

const Kernels &kernels = *best_kernels();
std::mt19937 chance;
long comparisons = 0;
using Floats = std::vector<float>;
const char *const KINDS[] = {"float32", "int8", "bfloat16"};

int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(chance); }

Floats numbers(size_t count, float spread, float middle = 0) {
    Floats made(count);
    std::normal_distribution<float> normal(middle, spread);
    for (float &value : made) value = normal(chance);
    return made;
}

float from_half(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
uint16_t to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float rounded_half(float value) { return from_half(to_half(value)); }

void compare(double found, double wanted, double allowed, const char *what, const char *kind, int a, int b, int c) {
    comparisons++;
    if (std::fabs(found - wanted) <= allowed) return;
    std::fprintf(stderr, "FINDING: %s, %s %s (%d, %d, %d): %.9g, wanted %.9g within %.3g\n", kernels.name, kind, what, a, b,
                 c, found, wanted, allowed);
    std::abort();
}

double activated(double x, Activation activation) {
    if (activation == RELU) return x > 0 ? x : 0;
    if (activation == GELU_TANH) return 0.5 * x * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
    return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}

// A weight [N, K] with everything beside it, made ready.
struct Made {
    Linear linear;
    Floats weight, bias, smooth, scale, sum, moments;
    std::vector<int> exact;
    std::vector<char> tiles;

    Made(int K, int N, Kind kind, int num_exact) : weight(numbers((size_t)K * N, 0.1f)), bias(numbers(N, 0.5f)) {
        smooth = Floats(K);
        for (float &one : smooth) one = 0.5f + (float)between(0, 100) / 100;
        scale = sum = Floats(N);
        linear.K = K, linear.N = N, linear.kind = kind, linear.bias = bias.data();
        if (kind == BFLOAT16) {
            for (int k = 0; k < K; k++) exact.push_back(k);
            std::shuffle(exact.begin(), exact.end(), chance);
            exact.resize(num_exact);
            moments = numbers(K, 1);
            for (float &one : moments) one *= one;
            for (int k : exact) moments[k] = 0;
            linear.exact = exact.data(), linear.num_exact = num_exact;
            if (between(0, 3)) linear.moments = moments.data();
        }
        tiles.resize(kernels.tiles_bytes(&linear) + 63);
        linear.tiles = tiles.data() + (64 - (uintptr_t)tiles.data() % 64) % 64;
        linear.column_scale = scale.data(), linear.column_sum = sum.data(), linear.inverse_smooth = smooth.data();
        for (int tile = 0; tile * kernels.tile < N; tile++) kernels.pack(weight.data(), &linear, tile);
    }

    bool is_exact(int k) const { return std::count(exact.begin(), exact.end(), k) > 0; }

    // The weight as the product sees it, times what its input was multiplied by.
    double at(int n, int k) const {
        const float w = weight[(size_t)n * linear.K + k];
        if (linear.kind == FLOAT || is_exact(k)) return w;
        if (linear.kind == INT8) return std::rint(w / smooth[k] / scale[n]) * scale[n];
        if (!kernels.half) return w;  // the scale is not kept: `slack` says how far it may be off
        // One of the factors that kernels.inl tries: 1 / scale may be the number beside it, and round a tie the other way.
        const float factor = std::exp2((float)std::lround(-256 * std::log2(scale[n])) / 256);
        return rounded_half(w * factor) * (double)scale[n];
    }
    double slack(int k) const {
        if (linear.kind != BFLOAT16) return 0;
        return is_exact(k) ? 1.0 / (1 << 15) : kernels.half ? 1e-6 : 1.0 / (1 << 8);
    }
};

// Rounded rows with memory for whole squares, as the encoder has it.
struct Rows {
    std::vector<float> memory;
    Floats scale, zero;
    Rounded rounded;
    Rows(const Made &made, const Floats &x, int rows)
        : memory((size_t)(rows + 32) * depth_of(made.linear)), scale(rows), zero(rows) {
        const int K = made.linear.K;
        rounded = {memory.data(), depth_of(made.linear), scale.data(), zero.data()};
        if (made.linear.kind != FLOAT) kernels.round_rows(x.data(), K, 0, rows, &made.linear, &rounded);
    }
};

void products(Kind kind) {
    const int K = 16 * between(1, 13), N = 16 * between(1, 13), rows = between(1, between(0, 3) ? 20 : 75);
    const Made made(K, N, kind, between(0, 8));
    const Floats x = numbers((size_t)rows * K, 1, between(0, 3) ? 0 : 3), residual = numbers((size_t)rows * N, 1);
    const Rows given(made, x, rows);
    const Epilogue epilogue = (Epilogue)between(0, 2);
    const Activation activation = (Activation)between(0, 3);
    const bool half = kernels.half && kind != FLOAT && between(0, 1);
    const long ld = half ? depth_of(N) : N;
    std::vector<float> out(rows * ld, NAN);
    const int tiles = (N + kernels.tile - 1) / kernels.tile, cut = between(0, tiles);
    for (int part = 0; part < 2; part++)  // as two threads would
        kernels.multiply(&made.linear, x.data(), K, &given.rounded, rows, part ? cut : 0, part ? tiles : cut,
                         {out.data(), ld, half}, epilogue, activation, residual.data(), N);
    for (int r = 0; r < rows; r++) {
        float low = 0, high = 0;
        for (int k = 0; k < K; k++) {
            const float v = x[(size_t)r * K + k] * made.smooth[k];
            low = std::fmin(low, v), high = std::fmax(high, v);
        }
        const double step = (high - low) / 255.0, zero = std::rint(-low / step);
        for (int n = 0; n < N; n++) {
            double wanted = made.bias[n], size = std::fabs(wanted) + 1, slack = 0;
            for (int k = 0; k < K; k++) {
                const float v = x[(size_t)r * K + k];
                const double input = kind == FLOAT      ? v
                                     : kind == BFLOAT16 ? (made.is_exact(k) ? v : rounded_half(v))
                                                        : (std::rint(v * made.smooth[k] / step + zero) - zero) * step;
                wanted += input * made.at(n, k);
                size += std::fabs(input * made.at(n, k));
                slack += made.slack(k) * std::fabs(input * made.at(n, k));
            }
            // a tie may go the other way, one step of an input times a weight
            double allowed = 4e-6 * size + slack + (kind == INT8 ? 4 * step * 127 * made.scale[n] : 0);
            if (epilogue == ACTIVATE) wanted = activated(wanted, activation), allowed = 1.2 * allowed + 2e-6;
            if (epilogue == ACTIVATE && activation == GELU_COARSE) allowed += 2e-4;
            if (epilogue == RESIDUAL) wanted += residual[(size_t)r * N + n];
            if (half) allowed += std::fabs(wanted) / 250;
            const float found = half ? from_half(((uint16_t *)out.data())[r * ld + n]) : out[r * ld + n];
            compare(found, wanted, allowed, "product", KINDS[kind], K, N, rows);
        }
        for (int n = N; half && n < ld; n++)
            compare(((uint16_t *)out.data())[r * ld + n], 0, 0, "end of a row", KINDS[kind], K, N, rows);
    }
}

void norms() {
    const int width = between(1, 130), padded = (width + 15) / 16 * 16, rows = between(1, 9);
    Floats x = numbers((size_t)rows * padded, 2, between(0, 2) ? 0 : 50), weight = numbers(padded, 1), bias = numbers(padded, 1);
    for (int i = width; i < padded; i++) {
        weight[i] = bias[i] = 0;
        for (int r = 0; r < rows; r++) x[(size_t)r * padded + i] = 0;
    }
    Floats out(x.size()), inverses(rows);
    kernels.layer_norm(x.data(), padded, 0, rows, width, padded, weight.data(), bias.data(), 1e-6f, out.data(), padded,
                       inverses.data());
    for (int r = 0; r < rows; r++) {
        double mean = 0, square = 0;
        for (int i = 0; i < width; i++) mean += x[(size_t)r * padded + i] / (double)width;
        for (int i = 0; i < width; i++) square += std::pow(x[(size_t)r * padded + i] - mean, 2) / width;
        compare(inverses[r] * std::sqrt(square + 1e-6), 1, 2e-4, "inverse", "float32", width, rows, r);
        for (int i = 0; i < padded; i++) {
            const double by = i < width ? (x[(size_t)r * padded + i] - mean) / std::sqrt(square + 1e-6) : 0;
            compare(out[(size_t)r * padded + i], by * weight[i] + bias[i], 2e-4 * (1 + std::fabs(by)), "norm", "float32",
                    width, rows, i);
        }
    }
}

void lookups(bool half) {
    const int N = 16 * between(1, 12);
    const bool typed = between(0, 1);
    const Floats position = numbers(N, 1), type = numbers(N, 1), constant = numbers(N, 1);
    const float step = between(1, 9) * 1e-4f, inverse = (float)between(1, 30);
    std::vector<int16_t> word(N);
    for (int16_t &number : word) number = (int16_t)between(-32767, 32767);
    Floats out(N);
    kernels.look_up(word.data(), step, position.data(), typed ? type.data() : nullptr, constant.data(), inverse, N, out.data(),
                    half);
    for (int n = 0; n < N; n++) {
        const double sum = (double)word[n] * step + position[n] + (typed ? type[n] : 0), wanted = sum * inverse + constant[n];
        const float found = half ? from_half(((uint16_t *)out.data())[n]) : out[n];
        compare(found, wanted, 1e-5 * (1 + inverse) * (1 + std::fabs(sum)) + (half ? std::fabs(wanted) / 250 : 0), "lookup",
                half ? "bfloat16" : "float32", N, n, typed);
    }
}

void attention(bool half) {
    const int width = 16 * between(1, 5), length = between(1, between(0, 3) ? 40 : 150), heads = between(1, 2);
    const long ld = 3L * heads * width, at = (long)between(0, heads - 1) * width;
    Floats all = numbers((size_t)(length + (half ? 32 : 0)) * ld, 1);
    std::vector<uint16_t> halves(all.size());
    if (half)
        for (size_t i = 0; i < all.size(); i++) halves[i] = to_half(all[i]), all[i] = from_half(halves[i]);
    const bool biased = between(0, 1), out_half = half && between(0, 1);
    const Floats table = numbers(2 * length + 16, 1);
    const float *bias = biased ? table.data() + length - 1 : nullptr;
    std::vector<float> out((size_t)length * width), scratch(kernels.attention_scratch(length, width));
    const float *q = all.data() + at, *k = q + heads * width, *v = k + heads * width;
    const uint16_t *hq = halves.data() + at, *hk = hq + heads * width, *hv = hk + heads * width;
    if (half)
        kernels.attend_half(hq, hk, hv, ld, length, width, 0.2f, bias, {out.data(), width, out_half}, scratch.data());
    else
        kernels.attend(q, k, v, ld, length, width, 0.2f, bias, out.data(), width, scratch.data());
    for (int r = 0; r < length; r++) {
        std::vector<double> weights(length);
        double most = -1e300, total = 0;
        for (int j = 0; j < length; j++) {
            double score = biased ? bias[j - r] : 0;
            for (int i = 0; i < width; i++) score += (double)q[r * ld + i] * k[j * ld + i];
            most = std::max(most, weights[j] = 0.2f * score);
        }
        for (double &one : weights) total += one = std::exp(one - most);
        for (int i = 0; i < width; i++) {
            double wanted = 0, size = 0;
            for (int j = 0; j < length; j++) {
                wanted += weights[j] / total * v[j * ld + i];
                size += weights[j] / total * std::fabs(v[j * ld + i]);
            }
            const double allowed = half ? size / 120 + 1e-4 : 3e-5 * (1 + size);
            const float found = out_half ? from_half(((uint16_t *)out.data())[r * width + i]) : out[(size_t)r * width + i];
            compare(found, wanted, allowed, "attention", half ? "bfloat16" : "float32", length, width, r);
        }
    }
}

double microseconds(const std::function<void()> &job) {
    using Clock = std::chrono::steady_clock;
    job();
    double best = 1e30;
    const auto until = Clock::now() + std::chrono::milliseconds(150);
    while (Clock::now() < until) {
        const auto start = Clock::now();
        job();
        best = std::min(best, std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    return best;
}

// A chunk of 192 tokens through one layer of width 384, kernel by kernel.
void time() {
    const int rows = 192, width = 384, inner = 1536;
    std::printf("%s: microseconds for %d tokens\n", kernels.name, rows);
    const struct {
        const char *name;
        int K, N;
        Epilogue epilogue;
    } shapes[] = {{"qkv", width, 3 * width, PLAIN}, {"out", width, width, RESIDUAL}, {"up", width, inner, ACTIVATE},
                  {"down", inner, width, RESIDUAL}, {"(up without GELU", width, inner, PLAIN}};
    for (int kind = 0; kind < 3; kind++) {
        double sum = 0, rounding = 0;
        std::printf("%-9s", KINDS[kind]);
        for (const auto &shape : shapes) {
            const bool two_numbers = kind == BFLOAT16 && shape.K == width && shape.N > width;  // as bfloat16.py has it
            const Made made(shape.K, shape.N, (Kind)kind, two_numbers ? 8 : 0);
            const Floats x = numbers((size_t)rows * shape.K, 1), residual = numbers((size_t)rows * shape.N, 1);
            Rows given(made, x, rows);
            const bool half = kernels.half && ((kind == BFLOAT16 && shape.epilogue != RESIDUAL) || (kind == INT8 && shape.name[0] == 'q'));
            Floats out((size_t)rows * shape.N);
            const double took = microseconds([&] {
                kernels.multiply(&made.linear, x.data(), shape.K, &given.rounded, rows, 0,
                                 (shape.N + kernels.tile - 1) / kernels.tile, {out.data(), shape.N, half}, shape.epilogue,
                                 kind == FLOAT ? GELU_ERF : GELU_COARSE, residual.data(), shape.N);
            });
            const bool extra = shape.name[0] == '(';
            if (kind != FLOAT && !extra)
                rounding += microseconds(
                    [&] { kernels.round_rows(x.data(), shape.K, 0, rows, &made.linear, &given.rounded); });
            if (extra)
                std::printf("  %s %.0f)", shape.name, took);
            else
                std::printf("  %s %.0f (%.0f G/s)", shape.name, took, 2e-3 * rows * shape.K * shape.N / took);
            sum += extra ? 0 : took;
        }
        std::printf("  together %.0f, rounding %.0f\n", sum, rounding);
    }
    const Floats x = numbers((size_t)rows * width, 1), ones(width, 1);
    Floats out(x.size());
    std::printf("norm %.1f\n", microseconds([&] {
                    kernels.layer_norm(x.data(), width, 0, rows, width, width, ones.data(), ones.data(), 1e-12f,
                                       out.data(), width, nullptr);
                }));
    for (int length : {16, 64, 128, 192, 512}) {
        const int texts = std::max(1, rows / length), head = 32;
        const Floats qkv = numbers((size_t)(length + 32) * 3 * width, 1);
        std::vector<uint16_t> halves(qkv.size());
        std::transform(qkv.begin(), qkv.end(), halves.begin(), to_half);
        Floats context((size_t)length * width), scratch(kernels.attention_scratch(length, head));
        std::printf("attention, %d texts of %d tokens, 12 heads: float32 %.0f", texts, length, microseconds([&] {
                        for (int job = 0; job < texts * 12; job++)
                            kernels.attend(qkv.data() + job % 12 * head, qkv.data() + width + job % 12 * head,
                                           qkv.data() + 2 * width + job % 12 * head, 3 * width, length, head, 0.17f, nullptr,
                                           context.data() + job % 12 * head, width, scratch.data());
                    }));
        if (kernels.half)
            std::printf(", bfloat16 %.0f", microseconds([&] {
                            for (int job = 0; job < texts * 12; job++)
                                kernels.attend_half(halves.data() + job % 12 * head, halves.data() + width + job % 12 * head,
                                                    halves.data() + 2 * width + job % 12 * head, 3 * width, length, head, 0.17f,
                                                    nullptr, {(uint16_t *)context.data() + job % 12 * head, width, true},
                                                    scratch.data());
                        }));
        std::printf("\n");
    }
}

}  // namespace

int main(int count, char **given) {
    if (count == 2) {
        time();
        return 0;
    }
    chance.seed((unsigned)std::atoi(given[1]));
    for (int round = std::atoi(given[2]); round; round--) {
        for (Kind kind : {FLOAT, INT8, BFLOAT16}) products(kind);
        norms();
        attention(false);
        lookups(false);
        if (kernels.half) attention(true), lookups(true);
    }
    std::printf("%s %ld\n", kernels.name, comparisons);
}
