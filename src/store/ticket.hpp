// Lanes and tickets: a thread that runs submitted work, and a handle to a pending operation.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace nearstep::store {

// A pending operation; move-only. The destructor waits and ignores an error that nobody asked for.
class Ticket {
public:
    Ticket() = default;
    explicit Ticket(std::future<void> done);
    Ticket(Ticket&&) noexcept = default;
    Ticket& operator=(Ticket&& other) noexcept;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket();

    // From now on this ticket covers both operations.
    void add(Ticket other);

    // Whether wait() would return at once.
    bool is_complete() const;

    // Blocks until the operation is complete; rethrows its first error. A second call, or one on an
    // empty ticket, returns at once.
    void wait();

private:
    std::vector<std::future<void>> pending_;
};

// A thread that runs submitted work in order. Any thread may submit. The destructor waits until the
// queue is empty.
class Worker {
public:
    Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;
    ~Worker();

    Ticket submit(std::function<void()> work);

private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::packaged_task<void()>> queue_;
    bool is_closing_ = false;
    std::thread thread_;
};

}  // namespace nearstep::store
