// Lanes and tickets: work handed to a thread, and the pending operation that stands for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace nearstep::store {

// One pending operation; move-only. The destructor waits, and drops an error that nobody asked for.
class Ticket {
public:
    Ticket() = default;
    explicit Ticket(std::future<void> done);
    Ticket(Ticket&&) noexcept = default;
    Ticket& operator=(Ticket&& other) noexcept;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket();

    // From now on this ticket stands for its own operation and the other one.
    void add(Ticket other);

    // Blocks until the operation is complete; rethrows its first error. A second call, or one on an
    // empty ticket, returns at once.
    void wait();

private:
    std::vector<std::future<void>> pending_;
};

// A thread that runs what it is given, in order. Any thread may submit; the destructor finishes the
// queue.
class Lane {
public:
    Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;
    ~Lane();

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
