// Measures the seconds that parts of a step take.
#pragma once

#include <chrono>
#include <utility>

namespace nearstep {

class Stopwatch {
public:
    // Seconds since construction or the last call.
    double lap() {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    }

private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace nearstep
