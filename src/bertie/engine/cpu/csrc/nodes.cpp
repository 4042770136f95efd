#include "nodes.h"

#if defined(__linux__)
#include <sched.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "team.h"

static_assert(sizeof(Cores) == sizeof(cpu_set_t), "both are a bit for each core, in words of the same size");

namespace {

struct Machine {
    std::vector<int> nodes;    // by core
    std::vector<Cores> cores;  // by node
};

const Machine *machine = nullptr;  // null: one node. Never destroyed: threads may outlive main.

}  // namespace

void set_nodes(const int *nodes, int cores) {
    std::lock_guard<std::mutex> lock(across_forks);
    const int all = (int)Cores().size();
    cores = std::min(cores, all);
    const int count = cores > 0 ? 1 + *std::max_element(nodes, nodes + cores) : 1;
    if (machine || count < 2) return;
    Machine *made = new Machine{std::vector<int>(nodes, nodes + cores), std::vector<Cores>(count)};
    made->nodes.resize(all, 0);
    for (int core = 0; core < all; core++) made->cores[made->nodes[core]].set(core);
    machine = made;
}

int num_nodes() { return machine ? (int)machine->cores.size() : 1; }

Cores usable_cores() {
    Cores usable;
    if (sched_getaffinity(0, sizeof usable, reinterpret_cast<cpu_set_t *>(&usable))) return Cores();
    return usable;
}

Cores cores_of(int node) { return machine->cores[node]; }

int current_node() {
    if (!machine) return 0;
    const int core = sched_getcpu();
    return core >= 0 && core < (int)machine->nodes.size() ? machine->nodes[core] : 0;
}

void bind_to(const Cores &cores) { sched_setaffinity(0, sizeof cores, reinterpret_cast<const cpu_set_t *>(&cores)); }

#else

void set_nodes(const int *, int) {}
int num_nodes() { return 1; }
Cores usable_cores() { return Cores(); }
Cores cores_of(int) { return Cores(); }
int current_node() { return 0; }
void bind_to(const Cores &) {}

#endif
