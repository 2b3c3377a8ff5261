// The work that one optimizer gives to the MPI thread: it runs in order, its first failure stops
// the rest, and the program's threads wait for what it changes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

namespace nearstep::python {

// Called several times a second while waiting. Throws to stop the wait.
using Poll = std::function<void()>;

class WorkQueue {
public:
    // Adds work and returns its number. Throws the failure of earlier work.
    std::uint64_t post(std::function<void()> work);
    // Runs `work`, which may refer to the caller's variables, and returns when it is done.
    void do_and_wait(std::function<void()> work);
    bool is_done(std::uint64_t work) const;
    // Both functions wait until the work is done, or all work is, and rethrow its failure.
    void await(std::uint64_t work, const Poll& poll);
    void await_all(const Poll& poll);
    // Waits until `is_over`, which is called under the lock, or rethrows a failure.
    void wait(const Poll& poll, const std::function<bool()>& is_over);

    // Runs `last` whether or not earlier work has failed, and returns when it is done. From then on
    // post() refuses. Only the first call does anything.
    void close(const std::function<void()>& last);
    bool has_failed() const;

    // Calls `look`, or `change` for which others may wait, with the lock held that guards what the
    // program's threads and the MPI thread share.
    template <typename Look>
    auto locked(const Look& look) const {
        const std::lock_guard lock(mutex_);
        return look();
    }
    template <typename Change>
    void publish(const Change& change) {
        const std::lock_guard lock(mutex_);
        change();
        changed_.notify_all();
    }

    // Makes a queue that is destroyed in a fork forget the threads of the parent that wait here.
    void leave_to_parent();

private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t posted_ = 0;
    std::uint64_t done_ = 0;
    std::exception_ptr failure_;
    bool is_closed_ = false;
};

}  // namespace nearstep::python
