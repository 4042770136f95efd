// Memory that a model owns: arrays, and products made ready.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.h"
#include "nodes.h"

// In small pages lies what is written here and there, so that only what was written takes memory.
enum class Pages { ANY, SMALL };

// 64-byte aligned memory; large pieces in huge pages, since weights are read from end to end. Where there are several
// memory nodes, its pages are new, and come to lie on the node of the thread that first writes them. They are not shared
// with other pieces: so a huge page, which comes to lie on one node as a whole, never reaches into the next piece.
template <class T>
class Array {
  public:
    Array() = default;
    explicit Array(size_t count, Pages pages = Pages::ANY) { resize(count, pages); }
    void resize(size_t count, Pages pages = Pages::ANY) {
        const size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096 + 4096;
        const bool large = bytes >= (4u << 20), huge = large && pages == Pages::ANY;
        const size_t alignment = huge ? 2u << 20 : large ? 4096 : 64;
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
        if (large) madvise(made, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
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
