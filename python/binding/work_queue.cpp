// Passes an optimizer's work to the MPI thread and waits for it. Called by Conductor.
#include "python/binding/work_queue.hpp"

#include "base/error.hpp"
#include "python/binding/mpi_thread.hpp"

#include <chrono>
#include <new>
#include <utility>

namespace nearstep::python {

std::uint64_t WorkQueue::post(std::function<void()> work) {
    MpiThread::instance().refuse_fork();
    std::uint64_t mine = 0;
    {
        const std::lock_guard lock(mutex_);
        if (failure_) {
            std::rethrow_exception(failure_);
        }
        mine = ++posted_;
    }
    MpiThread::instance().post([this, work = std::move(work)] {
        std::exception_ptr failure;
        if (!has_failed()) {
            try {
                work();
            } catch (...) {
                failure = std::current_exception();
            }
        }
        publish([&] {
            if (failure && !failure_) {
                failure_ = failure;
            }
            ++done_;
        });
    });
    return mine;
}

void WorkQueue::wait(const Poll& poll, const std::function<bool()>& is_over) {
    MpiThread::instance().refuse_fork();
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            changed_.wait_for(lock, std::chrono::milliseconds(100),
                              [&] { return failure_ != nullptr || is_over(); });
            if (failure_) {
                std::rethrow_exception(failure_);
            }
            if (is_over()) {
                return;
            }
        }
        poll();
    }
}

void WorkQueue::do_and_wait(std::function<void()> work) {
    await(post(std::move(work)), [] {});
}

bool WorkQueue::is_done(std::uint64_t work) const {
    return locked([&] { return done_ >= work; });
}

void WorkQueue::await(std::uint64_t work, const Poll& poll) {
    wait(poll, [&] { return done_ >= work; });
}

void WorkQueue::await_all(const Poll& poll) {
    wait(poll, [&] { return done_ == posted_; });
}

bool WorkQueue::has_failed() const {
    return locked([&] { return failure_ != nullptr; });
}

void WorkQueue::close(const std::function<void()>& last) {
    std::uint64_t mine = 0;
    {
        const std::lock_guard lock(mutex_);
        if (std::exchange(is_closed_, true)) {
            return;
        }
        mine = ++posted_;
    }
    MpiThread::instance().post([&] {
        last();
        publish([&] {
            if (!failure_) {
                failure_ = std::make_exception_ptr(
                    ConfigError("This optimizer is closed: make a new one to go on."));
            }
            ++done_;
        });
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= mine; });
}

// The end of a condition variable for which a thread waits would wait, too.
void WorkQueue::leave_to_parent() { new (&changed_) std::condition_variable; }

}  // namespace nearstep::python
