#include "team.h"

#include <pthread.h>
#include <sched.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Looks `spins` times, then lets others have the core between looks.
template <class Done>
void spin_until(Done done, int spins) {
    for (int i = 0; !done(); i++) {
        if (i < spins)
            pause_briefly();
        else
            sched_yield();
    }
}

class Pool {
  public:
    // How often a worker without work looks for more before it sleeps: about 50 µs, the pause between two calls of a
    // busy caller.
    static constexpr int SPINS = 1500;

    bool try_take() { return busy_.try_lock(); }
    void give_back() { busy_.unlock(); }

    void run(int size, const std::function<void(int, int)> &job) {
        grow(size - 1);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            job_ = &job;
            size_ = size;
            left_.store(size - 1, std::memory_order_relaxed);
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        job(0, size);
        // The others finish within a chunk's time; sleeping leaves this core to whoever else has work.
        for (int i = 0; i < SPINS && left_.load(std::memory_order_acquire); i++) pause_briefly();
        if (left_.load(std::memory_order_acquire)) {
            std::unique_lock<std::mutex> lock(mutex_);
            done_.wait(lock, [&] { return left_.load(std::memory_order_acquire) == 0; });
        }
    }

  private:
    void grow(int workers) {
        while ((int)threads_.size() < workers) {
            const int number = (int)threads_.size() + 1;
            threads_.emplace_back([this, number, seen = round_.load()] { work(number, seen); });
            threads_.back().detach();
        }
    }

    void work(int number, unsigned seen) {
        for (;;) {
            for (int i = 0; i < SPINS && round_.load(std::memory_order_acquire) == seen; i++) pause_briefly();
            if (round_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
            }
            const std::function<void(int, int)> *job;
            int size;
            {
                std::lock_guard<std::mutex> lock(mutex_);
                seen = round_.load(std::memory_order_acquire);
                job = job_;
                size = size_;
            }
            if (number < size) {
                (*job)(number, size);
                if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                    std::lock_guard<std::mutex> lock(mutex_);
                    done_.notify_one();
                }
            }
        }
    }

    std::mutex busy_, mutex_;
    std::condition_variable wake_, done_;
    std::atomic<unsigned> round_{0};
    std::atomic<int> left_{0};
    const std::function<void(int, int)> *job_ = nullptr;
    int size_ = 0;
    std::vector<std::thread> threads_;
};

// Never destroyed: workers may outlive main. A forked child has none of the parent's threads and makes its own pool.
std::atomic<Pool *> pool{nullptr};
std::mutex making;

void forget_pool() {
    pool.store(nullptr);
    new (&making) std::mutex;
}

Pool &the_pool() {
    Pool *found = pool.load(std::memory_order_acquire);
    if (found) return *found;
    std::lock_guard<std::mutex> lock(making);
    found = pool.load();
    if (!found) {
        static bool asked = false;
        if (!asked) pthread_atfork(nullptr, nullptr, forget_pool);
        asked = true;
        found = new Pool;
        pool.store(found, std::memory_order_release);
    }
    return *found;
}

}  // namespace

void Barrier::wait() {
    if (size_ == 1) return;
    const unsigned round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        round_.store(round + 1, std::memory_order_release);
        return;
    }
    spin_until([&] { return round_.load(std::memory_order_acquire) != round; }, 4000);
}

void run_team(int size, const std::function<void(int, int)> &job) {
    if (size > 1 && the_pool().try_take()) {
        Pool &taken = the_pool();
        taken.run(size, job);
        taken.give_back();
    } else {
        job(0, 1);
    }
}
