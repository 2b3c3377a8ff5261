// What was measured, round by round, and its median.
#pragma once

#include <chrono>
#include <vector>

namespace nearstep {

struct Spread {
    double median = 0;  // of an even number: the mean of the two in the middle
    double least = 0;
    double most = 0;
};

// Of at least one value.
Spread spread_of(std::vector<double> values);

// values[i] / others[i]: rounds are compared with themselves, because other users of a machine come
// and go.
std::vector<double> ratios_of(const std::vector<double>& values, const std::vector<double>& others);

// That `work` takes, on the clock of the wall.
template <typename Work>
double seconds_of(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace nearstep
