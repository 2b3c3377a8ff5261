// Runs posted work on the thread that calls MPI. Used by Conductor.
#include "python/binding/mpi_thread.hpp"

#include "base/error.hpp"
#include "mpi/session.hpp"

#include <chrono>
#include <future>
#include <utility>

namespace nearstep::python {

namespace {

// How long a failed rank waits for its last MPI call to return.
constexpr std::chrono::seconds kFailureLimit{2};

}  // namespace

MpiThread& MpiThread::instance() {
    static auto* const thread = new MpiThread();  // NOLINT: it lives as long as the process
    return *thread;
}

void MpiThread::refuse_fork() const {
    if (is_of_parent()) {
        throw Error(
            "This process is a fork of one that trains, and only that one can use the optimizer: "
            "start other processes with the method \"spawn\", or before training begins.");
    }
}

void MpiThread::post(std::function<void()> work) {
    refuse_fork();
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    if (!thread_.joinable()) {
        owner_ = getpid();
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

namespace {

const char* does(int purpose) {
    switch (static_cast<Purpose>(purpose)) {
        case Purpose::end:
            return "has ended its program";
        case Purpose::close:
            return "closes its optimizer, as at the end of its program";
        case Purpose::open:
            return "opens a state";
        case Purpose::begin:
            return "begins to train";
        case Purpose::step:
            return "takes a step";
        case Purpose::change:
            return "goes on to train or to save";
        case Purpose::save:
            return "saves a checkpoint";
        case Purpose::digest:
            return "asks for the masters' digest";
    }
    return "";
}

}  // namespace

bool MpiThread::meet(Purpose purpose, bool raises, std::chrono::seconds limit) {
    if (!all_ranks_) {
        all_ranks_.emplace(mpi::Communicator::world(limit));
    }
    const mpi::Meeting meeting = all_ranks_->meet(static_cast<int>(purpose), raises, limit);
    // A rank without the optimizer has nothing to close.
    const bool is_only_closing =
        meeting.highest == static_cast<int>(Purpose::close) && !meeting.is_raised;
    if (meeting.lowest != meeting.highest && !is_only_closing) {
        throw MpiError(text("Rank ", meeting.rank, ' ', does(meeting.lowest), ", and another rank ",
                            does(meeting.highest),
                            ": let all ranks take the same steps in the same order. What is "
                            "durable stays."));
    }
    return meeting.is_raised;
}

// Returns false if the other ranks do not come in time.
bool MpiThread::end_with_others(bool others_wait) {
    try {
        if (others_wait && !all_ranks_) {
            mpi::start_for_library();
            all_ranks_.emplace(mpi::Communicator::world(kEndLimit));
        }
        while (all_ranks_ && mpi::is_running() &&
               all_ranks_->meet(static_cast<int>(Purpose::end), false, kEndLimit).highest !=
                   static_cast<int>(Purpose::end)) {
        }
    } catch (const ConfigError&) {
        return true;  // MPI, which another library started, has ended
    } catch (const MpiError&) {
        return false;
    }
    all_ranks_.reset();
    return mpi::end_for_library(kEndLimit);
}

void MpiThread::end(bool has_failed, bool others_wait) {
    if (is_of_parent()) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        if (!thread_.joinable() && (has_failed || !others_wait)) {
            return;
        }
        if (has_failed) {
            work_.clear();
        }
    }
    std::promise<bool> is_over;
    post([&] { is_over.set_value(!has_failed && end_with_others(others_wait)); });
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
