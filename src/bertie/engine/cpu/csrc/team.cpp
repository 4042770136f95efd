#include "team.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
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

class Pool {
  public:
    std::mutex busy;  // with a caller

    void run(int size, const Job &job) {
        size = grow(size);
        job_ = &job;
        state_.store(((state_.load() >> 33) + 1) << 33 | (uint64_t)size << 17 | OPEN);
        called_.wake();
        job(0, size);
        state_.fetch_and(~OPEN);
        done_.until([&] { return inside(state_.load()) == 0; });
    }

  private:
    // Starts workers until a team has `size` members; how many it has.
    int grow(int size) {
        size = std::min(size, 0xffff);
        try {
            const NoSignals here;
            for (; workers_ < size - 1; workers_++)
                std::thread([this, number = workers_ + 1, seen = call(state_.load())] { work(number, seen); }).detach();
        } catch (const std::system_error &) {  // the system has no more threads
        }
        return std::min(size, workers_ + 1);
    }

    void work(int number, uint64_t seen) {
        for (int looks = Waiting::LOOKS;;) {
            called_.until([&] { return call(state_.load()) != seen; }, looks);
            uint64_t state = state_.load();
            seen = call(state);
            looks = number < size(state) ? Waiting::LOOKS : 0;  // who is not in the team does not look for its next call
            if (number >= size(state)) continue;
            const auto open = [&] { return call(state) == seen && state & OPEN; };
            while (open() && !state_.compare_exchange_weak(state, state + 1)) {
            }
            if (!open()) continue;  // too late: the others have done it
            (*job_)(number, size(state));
            state = state_.fetch_sub(1);
            if (inside(state) == 1 && !(state & OPEN)) done_.wake();
        }
    }

    // Of `state_`: calls so far; the size of this one's team; whether workers may still begin; how many are at work. One
    // number, so that nobody begins what its caller has ended, and nobody reads what the next caller may be writing.
    static constexpr uint64_t OPEN = 1 << 16;
    static uint64_t call(uint64_t state) { return state >> 33; }
    static int size(uint64_t state) { return (int)(state >> 17 & 0xffff); }
    static int inside(uint64_t state) { return (int)(state & 0xffff); }

    Waiting called_, done_;
    std::atomic<uint64_t> state_{0};
    const Job *job_ = nullptr;
    int workers_ = 0;
};

// Never destroyed: workers may outlive main. A forked child has none of the parent's threads and makes its own pool.
Pool *pool = nullptr;

const int registered = pthread_atfork([] { across_forks.lock(); }, [] { across_forks.unlock(); },
                                      [] {
                                          pool = nullptr;
                                          across_forks.unlock();
                                      });

Pool &the_pool() {
    std::lock_guard<std::mutex> lock(across_forks);
    if (!pool) pool = new Pool;
    return *pool;
}

}  // namespace

Moment Moment::now() {
    timespec all, computing;
    clock_gettime(CLOCK_MONOTONIC, &all);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &computing);
    return {all.tv_sec + 1e-9 * all.tv_nsec, computing.tv_sec + 1e-9 * computing.tv_nsec};
}

void run_team(int size, const Job &job) {
    if (size > 1) {
        Pool &shared = the_pool();
        std::unique_lock<std::mutex> taken(shared.busy, std::try_to_lock);
        if (taken) return shared.run(size, job);
    }
    job(0, 1);
}
