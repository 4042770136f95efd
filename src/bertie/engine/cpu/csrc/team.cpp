#include "team.h"

#include <pthread.h>
#include <signal.h>

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
        left_.store(size - 1);
        call_.store(((call_.load() >> 16) + 1) << 16 | (uint64_t)size);
        called_.wake();
        job(0, size);
        done_.until([&] { return left_.load() == 0; });
    }

  private:
    // Starts workers until a team has `size` members; how many it has.
    int grow(int size) {
        size = std::min(size, 0xffff);
        try {
            const NoSignals here;
            for (; workers_ < size - 1; workers_++)
                std::thread([this, number = workers_ + 1, seen = call_.load()] { work(number, seen); }).detach();
        } catch (const std::system_error &) {  // the system has no more threads
        }
        return std::min(size, workers_ + 1);
    }

    void work(int number, uint64_t seen) {
        for (int looks = Waiting::LOOKS;;) {
            called_.until([&] { return call_.load() != seen; }, looks);
            seen = call_.load();
            const int size = (int)(seen & 0xffff);
            looks = number < size ? Waiting::LOOKS : 0;  // who is not in the team does not look for its next call
            if (number >= size) continue;
            (*job_)(number, size);
            if (left_.fetch_sub(1) == 1) done_.wake();
        }
    }

    Waiting called_, done_;
    // Calls so far, and in the last 16 bits the size of this one's team: one number, so that a worker that is not in the
    // team reads nothing else, which the next caller may be writing.
    std::atomic<uint64_t> call_{0};
    std::atomic<int> left_{0};
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

void Barrier::wait(int size) {
    if (size == 1) return;
    const unsigned round = round_.load();
    if (arrived_.fetch_add(1) == size - 1) {
        arrived_.store(0);
        round_.store(round + 1);
        waiting_.wake();
    } else {
        waiting_.until([&] { return round_.load() != round; });
    }
}

void run_team(int size, const Job &job) {
    if (size > 1) {
        Pool &shared = the_pool();
        std::unique_lock<std::mutex> taken(shared.busy, std::try_to_lock);
        if (taken) return shared.run(size, job);
    }
    job(0, 1);
}
