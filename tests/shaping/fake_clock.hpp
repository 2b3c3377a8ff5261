// A clock that only sleepers move on.
#pragma once

#include "shaping/clock.hpp"

#include <atomic>

namespace nearstep::shaping {

class FakeClock : public Clock {
public:
    Time now() const override { return now_; }
    void sleep_until(Time time) const override {
        Time now = now_;
        while (now < time && !now_.compare_exchange_weak(now, time)) {
        }
    }

    void set(Time time) { now_ = time; }

private:
    mutable std::atomic<Time> now_{1'000'000'000};
};

}  // namespace nearstep::shaping
