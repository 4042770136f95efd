// Threads that wait for work together: one pool for the process, made when first needed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

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
        // Counted before the last look, and `wake` counts after the change: one of the two sees the other.
        asleep_.fetch_add(1);
        {
            std::unique_lock<std::mutex> lock(mutex_);
            changed_.wait(lock, done);
        }
        asleep_.fetch_sub(1);
    }

    // To be called after the change that is waited for.
    void wake() {
        if (!asleep_.load()) return;
        std::lock_guard<std::mutex> lock(mutex_);
        changed_.notify_all();
    }

  private:
    std::atomic<int> asleep_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
};

// A meeting point for as many threads as each of them says.
class Barrier {
  public:
    void wait(int size);

  private:
    std::atomic<int> arrived_{0};
    std::atomic<unsigned> round_{0};
    Waiting waiting_;
};

// Held while the process forks: a child does not inherit it locked by a thread that it does not have.
extern std::mutex across_forks;

using Job = std::function<void(int member, int size)>;

// Runs job(0) … job(size−1) side by side, job(0) on the caller, and returns when all are done. Fewer run where the system
// gives no more threads, and when the pool is busy with another caller this thread does it all, as job(0) of 1: `size`
// tells the job how many there are. The job must not throw.
void run_team(int size, const Job &job);
