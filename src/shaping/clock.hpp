// The clock that links use: the same for all processes of a machine.
#pragma once

#include <cstdint>

namespace nearstep::shaping {

// Nanoseconds of the machine's monotonic clock.
using Time = std::int64_t;

// The system's clock; tests derive one that they set.
class Clock {
public:
    Clock() = default;
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;
    virtual ~Clock() = default;

    virtual Time now() const;
    virtual void sleep_until(Time time) const;
};

}  // namespace nearstep::shaping
