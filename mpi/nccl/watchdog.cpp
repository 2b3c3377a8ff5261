// Looks at operations on GPUs until one is overdue or fails. Made by GpuTransport.
#include "mpi/nccl/watchdog.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace nearstep::nccl {

bool RunTime::is_overdue(Progress progress, Clock::time_point now, Clock::duration limit) {
    if (progress != Progress::running) {
        since_.reset();
        return false;
    }
    if (!since_) {
        since_ = now;
    }
    return now - *since_ > limit;
}

Watchdog::Watchdog(WatchdogSettings settings)
    : settings_(std::move(settings)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

int Watchdog::watch(Watched watched) {
    const std::lock_guard lock(mutex_);
    watched_.emplace(next_, std::move(watched));
    return next_++;
}

void Watchdog::forget(int watch) {
    const std::lock_guard lock(mutex_);
    watched_.erase(watch);
}

std::optional<std::string> Watchdog::look() {
    const Clock::time_point now{time_.look()};
    for (const auto& [number, watched] : watched_) {
        if (std::optional<std::string> problem = watched.look(now)) {
            return problem;
        }
    }
    return std::nullopt;
}

void Watchdog::run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
        tick_.wait_for(lock, stop, settings_.period, [] { return false; });
        const std::optional<std::string> problem = look();
        if (!problem) {
            continue;
        }
        lock.unlock();
        if (!settings_.end) {
            give_up(*problem);
        }
        settings_.end(abort_all(*problem));
        return;
    }
}

// Runs each abort in its own thread and waits no longer than the limit: one that hangs blocks
// neither the others nor the end of the program. Returns the first problem.
std::string Watchdog::abort_all(const std::string& problem) {
    struct PendingOperation {
        std::mutex mutex;
        std::condition_variable is_done;
        std::size_t count = 0;
    };
    std::vector<std::function<void()>> aborts;
    {
        const std::lock_guard lock(mutex_);
        if (problem_) {
            return *problem_;
        }
        problem_ = problem;
        for (const auto& [number, watched] : watched_) {
            aborts.push_back(watched.abort);
        }
    }
    const auto open = std::make_shared<PendingOperation>();
    open->count = aborts.size();
    for (std::function<void()>& abort : aborts) {
        std::thread([open, abort = std::move(abort)] {
            abort();
            const std::lock_guard lock(open->mutex);
            --open->count;
            open->is_done.notify_one();
        }).detach();
    }
    std::unique_lock lock(open->mutex);
    open->is_done.wait_for(lock, settings_.abort_limit, [&] { return open->count == 0; });
    return problem;
}

void Watchdog::give_up(const std::string& problem) { throw NcclError(abort_all(problem)); }

}  // namespace nearstep::nccl
