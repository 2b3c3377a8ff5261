#include "store/ticket.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace nearstep::store {

namespace {

void wait_for_all(const std::vector<std::future<void>>& pending) noexcept {
    for (const std::future<void>& operation : pending) {
        operation.wait();
    }
}

}  // namespace

Ticket::Ticket(std::future<void> done) { pending_.push_back(std::move(done)); }

Ticket& Ticket::operator=(Ticket&& other) noexcept {
    if (this != &other) {
        wait_for_all(pending_);
        pending_ = std::move(other.pending_);
        other.pending_.clear();
    }
    return *this;
}

Ticket::~Ticket() { wait_for_all(pending_); }

void Ticket::add(Ticket other) {
    for (std::future<void>& operation : other.pending_) {
        pending_.push_back(std::move(operation));
    }
    other.pending_.clear();
}

bool Ticket::is_complete() const {
    return std::ranges::all_of(pending_, [](const std::future<void>& operation) {
        return operation.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
}

void Ticket::wait() {
    // All operations must end before an error unwinds the owner of their memory.
    wait_for_all(pending_);
    std::vector<std::future<void>> done = std::move(pending_);
    pending_.clear();
    for (std::future<void>& operation : done) {
        operation.get();
    }
}

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

Ticket Worker::submit(std::function<void()> work) {
    std::packaged_task<void()> task(std::move(work));
    Ticket ticket(task.get_future());
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(task));
    }
    changed_.notify_one();
    return ticket;
}

void Worker::run() {
    while (true) {
        std::packaged_task<void()> task;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return is_closing_ || !queue_.empty(); });
            if (queue_.empty()) {
                return;
            }
            task = std::move(queue_.front());
            queue_.pop_front();
        }
        task();
    }
}

}  // namespace nearstep::store
