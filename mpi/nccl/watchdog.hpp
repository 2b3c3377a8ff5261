// Ends the program if GPUs wait for each other too long or NCCL reports a failure.
#pragma once

#include "base/awake_time.hpp"
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

class NcclError : public Error {
public:
    using Error::Error;
};

// The progress of an operation, from two events in its stream before and after it.
enum class Progress { queued, running, over };

// Measures how long a GPU operation runs; time queued behind other work in its stream does not
// count.
class RunTime {
public:
    // Call at each check. True if the operation has run for longer than `limit` since the first
    // check that saw it running.
    bool is_overdue(Progress progress, Clock::time_point now, Clock::duration limit);

private:
    std::optional<Clock::time_point> since_;
};

// An exception from `look` or `abort` ends the program. `look` is not called after forget()
// returns; an `abort` that has begun may still run then.
struct Watched {
    // Returns the error sentence at `now`, or none; see AwakeTime. The watchdog's thread calls it
    // once per period.
    std::function<std::optional<std::string>(Clock::time_point now)> look;
    // Aborts all pending operations, so that no one keeps waiting. Called once, in a thread of its
    // own because it may hang.
    std::function<void()> abort;
};

struct WatchdogSettings {
    std::chrono::milliseconds period{20};         // between checks
    std::chrono::milliseconds abort_limit{5000};  // for all aborts together
    // Called in the watchdog's thread with the problem, after everything was aborted. If empty, the
    // thread throws NcclError, and mpi::Session's terminate handler ends all ranks.
    std::function<void(const std::string& problem)> end = {};
};

// One per process. A problem in one communicator aborts all, since a GPU that waits in one can
// block the others. It has its own thread, so it works while the main thread waits for a GPU.
class Watchdog {
public:
    explicit Watchdog(WatchdogSettings settings = {});
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;
    ~Watchdog() = default;

    // Returns the number for forget(). Any thread may call both.
    int watch(Watched watched);
    // After return, `look` is no longer called.
    void forget(int watch);

    // Call on an error: aborts everything that is watched and throws NcclError. Later callers throw
    // the first caller's problem, the likely cause of their own.
    [[noreturn]] void give_up(const std::string& problem);

private:
    void run(const std::stop_token& stop);
    std::optional<std::string> look();
    std::string abort_all(const std::string& problem);

    WatchdogSettings settings_;
    std::mutex mutex_;
    std::optional<std::string> problem_;  // the first problem
    std::condition_variable_any tick_;
    std::map<int, Watched> watched_;
    AwakeTime time_;
    int next_ = 0;
    std::jthread thread_;  // declared last: it uses the members above
};

}  // namespace nearstep::nccl
