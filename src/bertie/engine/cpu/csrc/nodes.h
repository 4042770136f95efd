// Memory nodes (NUMA): groups of cores with memory of their own, which they read faster than that of the other nodes.
#pragma once

#include <bitset>

using Cores = std::bitset<1024>;  // by number

// To which node each core belongs, from 0 on; 0 too for cores beyond these. For the whole process, before its first model
// is made; the first call that names several nodes counts. Until then, and where systems have no masks of cores, there
// is one.
void set_nodes(const int *nodes, int cores);

int num_nodes();
constexpr int NO_NODE = -1;  // memory that threads of several nodes write

// The cores that this thread may use, of any node; none where the system does not say.
Cores usable_cores();

// All of a node, where there are several.
Cores cores_of(int node);

// Where this thread runs at this moment.
int current_node();

// This thread runs on these cores only, if the system allows it: no answer depends on where a thread runs.
void bind_to(const Cores &cores);
