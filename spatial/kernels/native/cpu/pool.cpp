#include "pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace spatial {
namespace {

// Between two operations of a step the workers spin this often before they sleep, since waking one costs about 50 µs, and
// now and then offer the core to others: PyTorch's own threads want it for what is computed between our operations.
constexpr int kSpins = 10000;
constexpr int kSpinsAtOnce = 20;

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

class Pool {
  public:
    explicit Pool(int workers) {
        for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
    }
    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            ++generation_;
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
    }
    int workers() const { return int(threads_.size()); }

    void run(int64_t count, const std::function<void(int64_t)>& task) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            task_ = &task;
            count_ = count;
            next_.store(0, std::memory_order_relaxed);
            busy_.store(workers(), std::memory_order_relaxed);
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        drain(task, count);
        while (busy_.load(std::memory_order_acquire) != 0) pause_briefly();
    }

  private:
    void drain(const std::function<void(int64_t)>& task, int64_t count) {
        for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) task(i);
    }
    void work() {
        uint64_t seen = 0;
        for (;;) {
            for (int i = 1; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i)
                i % kSpinsAtOnce ? pause_briefly() : std::this_thread::yield();
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
                seen = generation_.load(std::memory_order_relaxed);
                if (stopping_) return;
            }
            drain(*task_, count_);
            busy_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<int> busy_{0};
    const std::function<void(int64_t)>* task_ = nullptr;
    int64_t count_ = 0;
    bool stopping_ = false;
};

std::mutex pool_mutex;  // one parallel region at a time: callers from several Python threads take turns
Pool* pool = nullptr;
pid_t pool_owner = 0;
int wanted_threads = 1;
thread_local bool inside_region = false;

}  // namespace

void set_num_threads(int num_threads) {
    std::lock_guard<std::mutex> lock(pool_mutex);
    wanted_threads = std::max(1, num_threads);
}

int num_threads() { return wanted_threads; }

void parallel_for(int64_t count, const std::function<void(int64_t)>& task) {
    if (count <= 0) return;
    if (count == 1 || inside_region || wanted_threads == 1) {
        for (int64_t i = 0; i < count; ++i) task(i);
        return;
    }
    std::lock_guard<std::mutex> lock(pool_mutex);
    if (pool_owner != getpid()) {  // a fork took no threads along: the old pool is only memory now
        pool = nullptr;
        pool_owner = getpid();
    }
    if (!pool || pool->workers() != wanted_threads - 1) {
        delete pool;
        pool = new Pool(wanted_threads - 1);
    }
    inside_region = true;
    pool->run(count, task);
    inside_region = false;
}

void parallel_ranges(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& task) {
    const int64_t ranges = (count + grain - 1) / grain;
    parallel_for(ranges, [&](int64_t i) { task(i * grain, std::min(count, (i + 1) * grain)); });
}

}  // namespace spatial
