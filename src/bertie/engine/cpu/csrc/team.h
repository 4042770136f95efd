// Threads that wait for work together: a pool for each memory node, made when first needed.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "nodes.h"

// What threads wait for. They look for about 50 µs, the pause between two steps of a team that runs undisturbed, and then
// sleep: where cores are few, one that kept looking would hold the core that the one it waits for needs.
class Waiting {
  public:
    static constexpr int LOOKS = 1500;

    template <class Done>
    void until(Done done, int looks = LOOKS) {
        for (int i = 0; i < looks; i++) {
            if (done()) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        sleep(done);
    }

    // To be called after the change that is waited for.
    void wake() {
        if (!asleep_.load()) return;
        std::lock_guard<std::mutex> lock(mutex_);
        changed_.notify_all();
    }

  private:
    void sleep(const std::function<bool()> &done);

    std::atomic<int> asleep_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
};

// A piece of work in steps that several threads do together, each step when the one before it is done.
//
// A step is cut into as many parts as there are members. Every member takes its own part first and then those that nobody
// has begun. So one that the system has not let run yet is not waited for: the others do its parts, and when it comes it
// passes over the steps that are done. Waited for is only who is in the middle of a part.
class Meeting {
  public:
    static constexpr int MOST = 64;  // members

    Meeting(int steps, int size) : size_(std::min(size, MOST)), steps_(new Step[steps]) {}

    // This thread's number, or −1 where enough are here.
    int join() {
        const int number = joined_.load() < size_ ? joined_.fetch_add(1) : size_;
        return number < size_ ? number : -1;
    }

    // Does `count` things, work(first, last) some of them, and returns when all are done.
    template <class Work>
    void share(int number, int member, int count, Work work) {
        Step &step = steps_[number];
        for (int i = 0, part = member; i < size_; i++, part = part + 1 < size_ ? part + 1 : 0) {
            const uint64_t bit = (uint64_t)1 << part;
            if (step.taken.load() & bit || step.taken.fetch_or(bit) & bit) continue;
            work((int)((long)count * part / size_), (int)((long)count * (part + 1) / size_));
            if (step.done.fetch_add(1) == size_ - 1) waiting_.wake();
        }
        waiting_.until([&] { return step.done.load() == size_; });
    }

  private:
    struct Step {
        std::atomic<uint64_t> taken{0};  // parts, a bit each
        std::atomic<int> done{0};
        char apart[48];  // from the next step, which others may be at
    };
    const int size_;
    std::atomic<int> joined_{0};
    const std::unique_ptr<Step[]> steps_;
    Waiting waiting_;
};

// Seconds that this thread has lived, and those of them in which it had a core.
struct Moment {
    double all, computing;
    static Moment now();
};

// Whether a short text is better not shared. Where other processes use the cores too, the system may take the core from a
// member in the middle of its part, and everyone waits until it is given back: several milliseconds. A caller that computes
// for moments, with pauses between them, hardly ever loses its own core. So after a text that took longer than the caller
// alone would have needed, it does the next texts of that length alone: FEWEST of them, and twice as many each time that
// sharing again went wrong soon, so that of many texts less than a hundredth waits.
class Company {
  public:
    static constexpr int FEWEST = 100, MOST = 1600;

    // Whether to share a text of so many tokens.
    bool pays(int tokens) {
        if (alone_ <= 0 || tokens > tokens_) return true;
        alone_--;
        return false;
    }

    // How a text went that so many members shared.
    void learn(int tokens, int members, Moment began, Moment ended) {
        const double took = ended.all - began.all, alone = members * (ended.computing - began.computing);
        if (took < alone + 1e-3) {
            if (++went_well_ >= FEWEST) next_ = FEWEST;
            return;
        }
        tokens_ = tokens;
        alone_ = next_.load();
        next_ = std::min(2 * alone_, MOST);
        went_well_ = 0;
    }

  private:
    std::atomic<int> alone_{0}, tokens_{0}, next_{FEWEST}, went_well_{0};
};

// Held while the process forks: a child does not inherit it locked by a thread that it does not have.
extern std::mutex across_forks;

// Who works together: the caller, which is member 0, and workers. Where there are several memory nodes, members sit on the
// caller's node first, then on the next ones, on each no more than it has cores that the caller may use.
class Team {
  public:
    struct Seats {
        int node, first, count;  // members [first, first + count)
        Cores cores;             // that workers of these seats are bound to; none: they are not bound
    };

    explicit Team(int size);
    int size() const { return size_; }
    const std::vector<Seats> &seats() const { return seats_; }
    int node(int member) const {
        for (const Seats &seats : seats_)
            if (member < seats.first + seats.count) return seats.node;
        return seats_.back().node;
    }
    // Whether a team of this size may have members on several nodes, wherever its caller runs.
    static bool spans(int size);

  private:
    const int size_;
    std::vector<Seats> seats_;
};

using Job = std::function<void(int member, int size)>;

// Runs job(0) on the caller and the other members' jobs beside it, and returns when all that began are done. A job that
// was not begun when job(0) ended is never run, so job(0) must leave nothing undone that no other has begun. Fewer run
// where the system gives no more threads, and when a node's workers are busy with another caller: `size` tells the job
// how many there are, 1 where the caller does it all. The job must not throw.
void run_team(const Team &team, const Job &job);

// Runs work(node) at once on a thread of each node that this one may use, and returns when all are done. What they write
// first of memory that is new comes to lie on their node.
void on_each_node(const std::function<void(int node)> &work);
