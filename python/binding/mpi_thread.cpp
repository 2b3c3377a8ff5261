#include "python/binding/mpi_thread.hpp"

#include "mpi/session.hpp"

#include <chrono>
#include <future>
#include <utility>

namespace nearstep::python {

namespace {

// How long a finished rank waits for the others, which may be evaluating or writing files.
constexpr std::chrono::hours kEndLimit{24};
// How long a failed rank waits for its last MPI call to return.
constexpr std::chrono::seconds kFailureLimit{2};

}  // namespace

MpiThread& MpiThread::instance() {
    static auto* const thread = new MpiThread();  // NOLINT: it lives as long as the process
    return *thread;
}

void MpiThread::post(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    if (!thread_.joinable()) {
        thread_ = std::thread([this] { run(); });
    }
    has_work_.notify_one();
}

void MpiThread::run() {
    for (;;) {
        std::function<void()> work;
        {
            std::unique_lock lock(mutex_);
            has_work_.wait(lock, [this] { return !work_.empty(); });
            work = std::move(work_.front());
            work_.pop_front();
        }
        if (!work) {
            return;
        }
        work();
    }
}

void MpiThread::end(bool has_failed) {
    {
        const std::lock_guard lock(mutex_);
        if (!thread_.joinable()) {
            return;
        }
        if (has_failed) {
            work_.clear();
        }
    }
    std::promise<bool> is_over;
    post([&] { is_over.set_value(!has_failed && mpi::end_for_library(kEndLimit)); });
    auto future = is_over.get_future();
    future.wait_for(has_failed ? std::chrono::seconds(kFailureLimit)
                               : std::chrono::seconds(2 * kEndLimit));
    if (has_failed || !future.get()) {
        mpi::abort_ranks(1);
    }
    post({});
    thread_.join();
}

}  // namespace nearstep::python
