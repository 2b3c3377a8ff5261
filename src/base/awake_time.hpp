// Measures waits for other ranks, GPUs and cards by the time in which this process ran.
#pragma once

#include <algorithm>
#include <chrono>

namespace nearstep {

// A run may be stopped as a whole: a suspended job, a paused container, a closed lid. Its ranks go
// on together afterwards, so the time in between is no reason to give another rank up.
class AwakeTime {
public:
    using Clock = std::chrono::steady_clock;

    // Between two looks of a process that runs, also on a machine with much other work.
    static constexpr std::chrono::milliseconds kLongestPause{200};

    explicit AwakeTime(Clock::time_point now = Clock::now()) : last_(now) {}

    // The time since construction. Call it in each round of a wait: of the time between two calls,
    // kLongestPause counts at most.
    Clock::duration look(Clock::time_point now = Clock::now()) {
        awake_ += std::min<Clock::duration>(now - last_, kLongestPause);
        last_ = now;
        return awake_;
    }

private:
    Clock::time_point last_;
    Clock::duration awake_{};
};

}  // namespace nearstep
