// Ends the program when GPUs wait for each other for too long, or NCCL says that something failed.
#pragma once

#include "base/error.hpp"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

namespace nearstep::nccl {

using Clock = std::chrono::steady_clock;

// GPUs could not exchange, or waited for each other for too long.
class NcclError : public Error {
public:
    using Error::Error;
};

// What two events in a stream, before and behind an operation, say of it.
enum class Progress { queued, running, over };

// How long an operation of a GPU is under way: what stands before it in its stream does not count.
class RunTime {
public:
    // One look. True if it has been running for longer than `limit`, from the look that first saw
    // it run.
    bool is_overdue(Progress progress, Clock::time_point now, Clock::duration limit);

private:
    std::optional<Clock::time_point> since_;
};

// Both must not throw but what is to end the program, and stay callable until forget() returned.
struct Watched {
    // What is wrong at `now`, as a sentence; none: nothing. Called from the watchdog's thread, soon
    // again and again.
    std::function<std::optional<std::string>(Clock::time_point now)> look;
    // Gives up all that is under way, so that nobody is left waiting. Called once, from a thread of
    // its own, because it may hang.
    std::function<void()> abort;
};

struct WatchdogSettings {
    std::chrono::milliseconds period{20};         // between looks
    std::chrono::milliseconds abort_limit{5000};  // for all that is watched together
    // Called in the watchdog's thread with what was wrong, after everything was aborted. Empty: it
    // throws NcclError there, which mpi::Session's terminate handler makes the end of all ranks.
    std::function<void(const std::string& problem)> end = {};
};

// One per process: what is wrong with one communicator aborts all, since a GPU that waits in one
// can hold up the others. A thread of its own looks, so that a main thread that waits for a GPU
// does not hide what the GPU waits for.
class Watchdog {
public:
    explicit Watchdog(WatchdogSettings settings = {});
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;
    ~Watchdog() = default;

    // Returns what to forget() it by. Any thread may call both.
    int watch(Watched watched);
    // On return it is not looked at any more.
    void forget(int watch);

    // Of whoever finds that something is wrong: aborts all that is watched and throws NcclError.
    // Who comes second throws the first one's problem, which is likely the cause of its own.
    [[noreturn]] void give_up(const std::string& problem);

private:
    void run(const std::stop_token& stop);
    std::optional<std::string> look();
    std::string abort_all(const std::string& problem);

    WatchdogSettings settings_;
    std::mutex mutex_;
    std::optional<std::string> problem_;  // the first
    std::condition_variable_any tick_;
    std::map<int, Watched> watched_;
    int next_ = 0;
    std::jthread thread_;  // the last: it uses the others
};

}  // namespace nearstep::nccl
