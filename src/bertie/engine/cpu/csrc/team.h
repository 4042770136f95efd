// Threads that wait for work together: one pool for the process, made when first needed.
#pragma once

#include <atomic>
#include <functional>

// A meeting point for `size` threads. Waiting costs a few dozen nanoseconds while all cores are ours, and gives the
// core away when they are not.
class Barrier {
  public:
    explicit Barrier(int size) : size_(size) {}
    void wait();

  private:
    const int size_;
    std::atomic<int> arrived_{0};
    std::atomic<unsigned> round_{0};
};

// Runs job(0) … job(size−1) side by side, job(0) on the caller, and returns when all are done. When the pool is busy
// with another caller the whole job runs on this thread alone, as job(0) of 1: `size` tells the job how many there are.
void run_team(int size, const std::function<void(int member, int size)> &job);
