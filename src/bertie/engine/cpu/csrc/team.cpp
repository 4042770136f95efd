#include "team.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <system_error>
#include <thread>

// The libraries of 2018 have these under their older names, and so does every later one. By them, a library that was
// built on a newer system loads there too (manylinux_2_28): for wheels, since not every toolchain can link by them.
#if defined(BERTIE_OLD_NAMES) && defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.2.5");
__asm__(".symver pthread_mutex_trylock,pthread_mutex_trylock@GLIBC_2.2.5");
__asm__(".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
        "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif

std::mutex across_forks;

namespace {

// While it lives, this thread takes no signals, nor do threads that it starts: those are for the program's own threads.
// Faults stay, for whoever reports them.
class NoSignals {
  public:
    NoSignals() {
        sigset_t all;
        sigfillset(&all);
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, fault);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

// The workers of a node.
class Pool {
  public:
    std::mutex busy;  // with a caller

    // How many of these seats have workers, which are started where they are not there yet.
    int grow(const Team::Seats &seats) {
        first_ = std::max(seats.first, 1);  // not the caller's
        wanted_ = std::min(seats.first + seats.count - first_, 0xffff);
        if (cores_ != seats.cores) {
            cores_ = seats.cores;
            binding_++;
        }
        try {
            const NoSignals here;
            for (; workers_ < wanted_; workers_++)
                std::thread([this, number = workers_, seen = call(state_.load()), cores = cores_, bound = binding_] {
                    if (bound) bind_to(cores);
                    work(number, seen, bound);
                }).detach();
        } catch (const std::system_error &) {  // the system has no more threads
            wanted_ = workers_;
        }
        return wanted_;
    }

    void begin(int size, const Job &job) {
        size_ = size;
        job_ = &job;
        state_.store(((state_.load() >> 33) + 1) << 33 | (uint64_t)wanted_ << 17 | OPEN);
        called_.wake();
    }

    // No more workers begin.
    void close() { state_.fetch_and(~OPEN); }

    void wait() {
        done_.until([&] { return inside(state_.load()) == 0; });
    }

  private:
    void work(int number, uint64_t seen, int bound) {
        for (int looks = Waiting::LOOKS;;) {
            called_.until([&] { return call(state_.load()) != seen; }, looks);
            uint64_t state = state_.load();
            seen = call(state);
            looks = number < wanted(state) ? Waiting::LOOKS : 0;  // who is not in the team does not look for its next call
            if (number >= wanted(state)) continue;
            const auto open = [&] { return call(state) == seen && state & OPEN; };
            while (open() && !state_.compare_exchange_weak(state, state + 1)) {
            }
            if (!open()) continue;  // too late: the others have done it
            if (bound != binding_) bind_to(cores_);
            bound = binding_;
            (*job_)(first_ + number, size_);
            state = state_.fetch_sub(1);
            if (inside(state) == 1 && !(state & OPEN)) done_.wake();
        }
    }

    // Of `state_`: calls so far; how many workers this one wants; whether they may still begin; how many are at work. One
    // number, so that nobody begins what its caller has ended, and nobody reads what the next caller may be writing.
    static constexpr uint64_t OPEN = 1 << 16;
    static uint64_t call(uint64_t state) { return state >> 33; }
    static int wanted(uint64_t state) { return (int)(state >> 17 & 0xffff); }
    static int inside(uint64_t state) { return (int)(state & 0xffff); }

    Waiting called_, done_;
    std::atomic<uint64_t> state_{0};
    int workers_ = 0, wanted_ = 0;
    // Of this call: read by workers that have begun.
    const Job *job_ = nullptr;
    int size_ = 0, first_ = 0;
    Cores cores_;
    int binding_ = 0;  // how often `cores_` has changed
};

// Never destroyed: workers may outlive main. A forked child has none of the parent's threads and makes its own pools.
std::map<int, Pool> *pools = nullptr;

const int registered = pthread_atfork([] { across_forks.lock(); }, [] { across_forks.unlock(); },
                                      [] {
                                          pools = nullptr;
                                          across_forks.unlock();
                                      });

Pool &pool_of(int node) {
    std::lock_guard<std::mutex> lock(across_forks);
    if (!pools) pools = new std::map<int, Pool>;
    return (*pools)[node];
}

}  // namespace

// Here and not in the header, so that the older names at the top hold for it.
void Waiting::sleep(const std::function<bool()> &done) {
    // Counted before the last look, and `wake` counts after the change: one of the two sees the other.
    asleep_.fetch_add(1);
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, done);
    }
    asleep_.fetch_sub(1);
}

Moment Moment::now() {
    timespec all, computing;
    clock_gettime(CLOCK_MONOTONIC, &all);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &computing);
    return {all.tv_sec + 1e-9 * all.tv_nsec, computing.tv_sec + 1e-9 * computing.tv_nsec};
}

Team::Team(int size) : size_(size) {
    const int nodes = num_nodes();
    const Cores usable = nodes > 1 && size > 1 ? usable_cores() : Cores();
    const int here = current_node(), more = std::max(0, size - (int)usable.count());  // members than cores
    if (usable.none()) {
        seats_.push_back({here, 0, size, {}});
        return;
    }
    for (int i = 0, first = 0; i < nodes && first < size; i++) {
        const int node = (here + i) % nodes;
        const Cores cores = usable & cores_of(node);
        const int count = std::min(size - first, i ? (int)cores.count() : std::max(1, (int)cores.count() + more));
        if (count) seats_.push_back({node, first, count, cores});
        first += count;
    }
}

bool Team::spans(int size) {
    const Cores usable = num_nodes() > 1 ? usable_cores() : Cores();
    for (int node = 0; usable.any() && node < num_nodes(); node++) {
        const int cores = (int)(usable & cores_of(node)).count();
        if (cores && cores < size && cores < (int)usable.count()) return true;
    }
    return false;
}

void run_team(const Team &team, const Job &job) {
    std::vector<std::pair<Pool *, std::unique_lock<std::mutex>>> called;
    int size = 1;
    for (const Team::Seats &seats : team.seats()) {
        if (seats.first + seats.count < 2) continue;  // the caller alone
        Pool &pool = pool_of(seats.node);
        std::unique_lock<std::mutex> taken(pool.busy, std::try_to_lock);
        if (!taken) continue;
        size += pool.grow(seats);
        called.emplace_back(&pool, std::move(taken));
    }
    for (auto &one : called) one.first->begin(size, job);
    job(0, size);
    for (auto &one : called) one.first->close();
    for (auto &one : called) one.first->wait();
}

void on_each_node(const std::function<void(int node)> &work) {
    const Cores usable = usable_cores();
    std::vector<std::thread> threads;
    threads.reserve(num_nodes());
    for (int node = 0; node < num_nodes(); node++) {
        const Cores cores = usable & cores_of(node);
        if (cores.none()) continue;
        try {
            const NoSignals here;
            threads.emplace_back([=, &work] {
                bind_to(cores);
                work(node);
            });
        } catch (const std::system_error &) {  // the system has no more threads
            work(node);
        }
    }
    for (std::thread &thread : threads) thread.join();
}
