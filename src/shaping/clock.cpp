// Reads and sleeps on the machine's monotonic clock. Used by links and by the engine.
#include "shaping/clock.hpp"

#include <chrono>
#include <thread>

namespace nearstep::shaping {

Time Clock::now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void Clock::sleep_until(Time time) const {
    std::this_thread::sleep_until(
        std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time)));
}

}  // namespace nearstep::shaping
