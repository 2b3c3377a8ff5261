// A pool of threads that share the iterations of a loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nearstep {

// Threads for a rank's loops: OMP_NUM_THREADS if set, else usable_cores(). At most 16, because
// 16 threads saturate memory bandwidth.
int pool_threads();

// One thread at a time calls share(). The other threads sleep between calls.
class ThreadPool {
public:
    // background: the other threads leave the CPU to threads that keep a GPU busy.
    enum class Priority { normal, background };

    // `threads`, at least 1, includes the caller's.
    explicit ThreadPool(int threads, Priority priority = Priority::normal);
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    ThreadPool(ThreadPool&&) = delete;
    ThreadPool& operator=(ThreadPool&&) = delete;
    ~ThreadPool();

    int threads() const { return static_cast<int>(others_.size()) + 1; }

    // `member` is the thread's number in [0, threads()). Calls with the same number never overlap.
    using Work = std::function<void(std::size_t i, int member)>;

    // Calls work once for each i < count, in any order, and returns when all calls are done. After
    // an error it starts no more calls and rethrows the first one. Must not be called by `work`.
    void share(std::size_t count, const Work& work);

private:
    void follow(int member);
    void take_turns(int member);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::condition_variable done_;
    // The current loop; mutex_ guards the members that are not atomic.
    const Work* work_ = nullptr;
    std::atomic<std::size_t> next_ = 0;
    std::size_t count_ = 0;  // does not change while threads take turns
    std::uint64_t loops_ = 0;
    int busy_ = 0;  // other threads that take turns
    std::exception_ptr error_;
    bool is_closing_ = false;
    std::vector<std::thread> others_;  // declared last: the threads use the other members
};

}  // namespace nearstep
