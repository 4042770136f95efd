// What is true of the engine's memory and threads on a machine with two memory nodes of two cores each. memory_nodes.py
// builds it and runs it as the first program of an emulated machine.
//
// For each set of kernels one process makes models on one node, and another the same models on both. The second checks
// where every page of every copy of the weights lies, on which cores workers may run, and that answers have the bits of
// the first.

#include <dirent.h>
#include <fcntl.h>
#include <linux/reboot.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "model.h"

extern "C" {
void bertie_nodes(const int *, int);
void *bertie_model_new(int, int, int, int, float, float, int, const float *, const float *, const float *, const float *,
                       const float *);
void bertie_model_free(void *);
void bertie_rows(void *, int64_t, int64_t, int64_t);
int bertie_layer(void *, int, int, const int *, const float *, const float *, const float *, const float *);
int bertie_linear(void *, int, int, int, int, int, const float *, const float *, const float *, const float *, const int *,
                  int, int);
int bertie_forward(void *, const int64_t *, const int64_t *, const int64_t *, const int32_t *, int, void *, void *, int, int);
}

namespace {

constexpr int WIDTH = 128, HEADS = 4, LAYERS = 2, WORDS = 50, PLACES = 200, CORES = 4;
const int NODE_OF[CORES] = {0, 0, 1, 1};
const char *const KINDS[] = {"float32", "int8", "bfloat16"};
const char *const ANSWERS = "/answers";
long checks = 0, findings = 0;

void check(bool held, const std::string &what) {
    checks++;
    if (held) return;
    findings++;
    std::printf("FINDING: %s\n", what.c_str());
}

std::vector<float> numbers(size_t count, float spread, unsigned seed) {
    std::mt19937 chance(seed);
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> made(count);
    for (float &value : made) value = normal(chance);
    return made;
}

// A model and what it must not outlive.
struct Made {
    std::vector<float> words = numbers(WORDS * WIDTH, 1, 1), places = numbers(PLACES * WIDTH, 1, 2),
                       types = numbers(WIDTH, 1, 3), ones = std::vector<float>(WIDTH, 1), zeros = std::vector<float>(WIDTH);
    Model *model;

    Made(int kind, int inner, int threads) {
        void *made = bertie_model_new(WIDTH, WIDTH, WIDTH / HEADS, LAYERS, 0.2f, 1e-12f, GELU_ERF, words.data(),
                                      places.data(), types.data(), ones.data(), zeros.data());
        bertie_rows(made, WORDS, PLACES, 1);
        const int numbers_of_heads[HEADS] = {0, 1, 2, 3};
        const int shapes[4][2] = {{3 * WIDTH, WIDTH}, {WIDTH, WIDTH}, {inner, WIDTH}, {WIDTH, inner}};
        for (int layer = 0; layer < LAYERS; layer++) {
            bertie_layer(made, layer, HEADS, numbers_of_heads, ones.data(), zeros.data(), ones.data(), zeros.data());
            for (int which = 0; which < 4; which++) {
                const int rows = shapes[which][0], columns = shapes[which][1];
                const auto weight = numbers((size_t)rows * columns, 0.1f, 10 + 4 * layer + which);
                const std::vector<float> bias(rows, 0.1f), smooth(columns, 1.5f);
                bertie_linear(made, layer, which, kind, columns, rows, weight.data(), bias.data(), smooth.data(), nullptr,
                              nullptr, 0, threads);
            }
        }
        model = static_cast<Model *>(made);
    }
    ~Made() { bertie_model_free(model); }

    std::vector<float> run(const std::vector<int> &lengths, int threads) {
        std::vector<int64_t> ids;
        std::vector<int32_t> ends{0};
        for (int length : lengths) {
            for (int k = 0; k < length; k++) ids.push_back((7 * k + length) % WORDS);
            ends.push_back((int32_t)ids.size());
        }
        std::vector<float> out(ids.size() * WIDTH);
        check(!bertie_forward(model, ids.data(), nullptr, nullptr, ends.data(), (int)lengths.size(), out.data(), nullptr, 0,
                              threads),
              "a batch was refused");
        return out;
    }
};

// On which node each page lies that was written of this memory.
std::vector<int> nodes_of_pages(const void *memory, size_t bytes) {
    const uintptr_t size = 4096, first = (uintptr_t)memory / size * size, last = (uintptr_t)memory + bytes;
    std::vector<void *> pages;
    for (uintptr_t page = first; page < last; page += size) pages.push_back(reinterpret_cast<void *>(page));
    std::vector<int> status(pages.size(), -1), found;
    check(!syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, status.data(), 0), "move_pages failed");
    for (int one : status)
        if (one >= 0) found.push_back(one);
    return found;
}

void check_copies(const Made &made, const std::string &name) {
    long pages[2] = {0, 0};
    for (const Layer &layer : made.model->layers)
        for (const OwnedLinear &linear : layer.linear) {
            check(linear.copies.size() == 2 && !linear.tiles.size(), name + ": a product has no copy for each node");
            for (int node = 0; node < (int)linear.copies.size(); node++) {
                const OwnedLinear::Copy &copy = linear.copies[node];
                const std::vector<int> found = nodes_of_pages(copy.tiles.get(), copy.tiles.size());
                const long right = std::count(found.begin(), found.end(), node);
                check(linear.on(node).tiles == copy.tiles.get(), name + ": a node reads another's copy");
                check(right == (long)((copy.tiles.size() + 4095) / 4096),
                      name + ": of a copy, " + std::to_string(found.size() - right) + " pages lie elsewhere");
                pages[node] += right;
            }
        }
    std::printf("%s: %ld pages of weights on node 0, %ld on node 1\n", name.c_str(), pages[0], pages[1]);
}

// What only one member writes. The caller may have moved to another node meanwhile, so some may lie elsewhere.
void check_workspaces(const Made &made, const std::string &name) {
    long right = 0, all = 0;
    for (const auto &of_node : made.model->idle)
        for (const auto &space : of_node.second)
            for (const Array<float> *array : {&space->x, &space->y, &space->qkv, &space->context, &space->wide}) {
                if (of_node.first == NO_NODE) continue;
                const std::vector<int> found = nodes_of_pages(array->get(), array->size() * sizeof(float));
                right += std::count(found.begin(), found.end(), of_node.first);
                all += (long)found.size();
            }
    check(all && right >= all * 3 / 4, name + ": workspaces lie elsewhere");
    std::printf("%s: %ld of %ld pages of workspaces on their node\n", name.c_str(), right, all);
}

Cores mask_of(int thread) {
    Cores mask;
    sched_getaffinity(thread, sizeof mask, reinterpret_cast<cpu_set_t *>(&mask));
    return mask;
}

void check_workers(const std::string &name) {
    int workers[2] = {0, 0}, elsewhere = 0;
    DIR *const folder = opendir("/proc/self/task");
    for (const dirent *entry; (entry = readdir(folder));) {
        const int thread = std::atoi(entry->d_name);
        if (!thread || thread == getpid()) continue;
        const Cores mask = mask_of(thread);
        if (mask == Cores(0b0011))
            workers[0]++;
        else if (mask == Cores(0b1100))
            workers[1]++;
        else
            elsewhere++;
    }
    closedir(folder);
    check(!elsewhere && workers[0] && workers[1], name + ": workers are not each bound to a node");
    check(mask_of(0).count() == CORES, name + ": the caller was bound");
    std::printf("%s: %d workers on node 0, %d on node 1\n", name.c_str(), workers[0], workers[1]);
}

// Wherever the caller runs, a small team sits on its node, and a larger one begins there.
void check_seats() {
    for (int core = 0; core < CORES; core++) {
        bind_to(Cores().set(core));
        bind_to(Cores(0b1111));
        const Team small(2), large(4);
        for (const Team *team : {&small, &large}) {
            const Team::Seats &first = team->seats().front();
            check(first.count == 2 && first.cores == Cores(first.node ? 0b1100 : 0b0011), "a team is not where it should be");
        }
        check(small.seats().size() == 1 && large.seats().size() == 2, "a team is on the wrong number of nodes");
    }
}

// What every model does: two batches by four threads, and two short texts.
std::vector<float> answers(Made &made, bool long_ones) {
    std::vector<float> all;
    for (int times = 0; times < 2; times++)
        for (const auto &lengths : {std::vector<int>(long_ones ? 40 : 3, 20), std::vector<int>{5}, std::vector<int>{90}}) {
            const auto out = made.run(lengths, CORES);
            all.insert(all.end(), out.begin(), out.end());
        }
    return all;
}

int with_kernels(const char *kernels, bool several) {
    setenv("BERTIE_CPU", kernels, 1);
    check(std::string(best_kernels()->name) == kernels, std::string("this machine has no ") + kernels);
    if (several) bertie_nodes(NODE_OF, CORES);
    std::fstream file(ANSWERS, std::ios::binary | (several ? std::ios::in : std::ios::out));
    const std::pair<Kind, int> sizes[] = {{FLOAT, 512}, {INT8, 512}, {BFLOAT16, 512}, {FLOAT, 8704}};
    for (const auto &[kind, inner] : sizes) {
        const std::string name = std::string(kernels) + ", " + KINDS[kind] + (inner > 512 ? ", in huge pages" : "");
        Made made(kind, inner, CORES);
        const std::vector<float> found = answers(made, inner <= 512);
        const size_t bytes = found.size() * sizeof(float);
        if (!several) {
            file.write(reinterpret_cast<const char *>(found.data()), bytes);
            for (const Layer &layer : made.model->layers)
                for (const OwnedLinear &linear : layer.linear) check(linear.copies.empty(), name + ": a copy on one node");
            continue;
        }
        std::vector<float> wanted(found.size());
        file.read(reinterpret_cast<char *>(wanted.data()), bytes);
        check(file && !std::memcmp(found.data(), wanted.data(), bytes), name + ": bits depend on nodes");
        check_copies(made, name);
        if (inner <= 512) check_workspaces(made, name);  // the others' short texts are shared by all
        check_workers(name);
    }
    if (several) {
        check_seats();
        Made small(FLOAT, 512, 2);
        check(small.model->layers[0].linear[0].copies.empty(), "a model whose teams stay on a node was copied");
        Made other(FLOAT, 512, CORES);
        for (int times = 0; times < 5; times++) other.run({90}, CORES);
        check(!other.model->idle.empty() && !other.model->idle.count(NO_NODE), "members on two nodes shared a short text");
    }
    std::printf("%s on %s: %ld checks, %ld findings\n", kernels, several ? "two nodes" : "one node", checks, findings);
    std::fflush(stdout);
    _exit(findings ? 1 : 0);  // workers wait for work that never comes
}

}  // namespace

int main() {
    for (const char *folder : {"proc", "sys"}) {
        mkdir(folder, 0755);
        mount(folder, folder, folder[0] == 'p' ? "proc" : "sysfs", 0, nullptr);
    }
    for (int node = 0; node < 2; node++) {
        std::string cores;
        std::ifstream("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist") >> cores;
        std::printf("node%d has cores %s\n", node, cores.c_str());
    }
    std::fflush(stdout);
    for (const char *kernels : {"portable", "avx2"})
        for (bool several : {false, true}) {
            const pid_t child = fork();
            if (!child) with_kernels(kernels, several);
            int status;
            waitpid(child, &status, 0);
            if (!WIFEXITED(status)) std::printf("FINDING: %s ended with status %d\n", kernels, status);
        }
    std::printf("done\n");
    std::fflush(stdout);
    sync();
    reboot(LINUX_REBOOT_CMD_RESTART);
}
