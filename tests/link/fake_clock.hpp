// A clock that only sleepers move on.
#pragma once

#include "link/clock.hpp"

#include <algorithm>
#include <atomic>

namespace nearstep::link {

class FakeClock : public Clock {
public:
    Time now() const override { return now_; }
    void sleep_until(Time time) const override { now_ = std::max<Time>(now_, time); }

    void set(Time time) { now_ = time; }

private:
    mutable std::atomic<Time> now_{1'000'000'000};
};

}  // namespace nearstep::link
