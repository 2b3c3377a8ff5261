// Statistics of repeated measurements.
#pragma once

#include <chrono>
#include <vector>

namespace nearstep {

struct Summary {
    double median = 0;  // for an even count: the mean of the two middle values
    double least = 0;
    double most = 0;
};

// Requires at least one value.
Summary summary_of(std::vector<double> values);

// The one that took the longest, as a multiple of the median time of all who took some.
struct Slowest {
    int rank = 0;
    double times = 1;
};

// Returns the slowest rank. Ranks whose time is 0 had nothing to do and do not count.
Slowest slowest_of(const std::vector<double>& seconds);

// Returns the rank that the others waited for in exchanges, because it was in them for the shortest
// time: the median rank was in them so many times as long. Ranks whose time is 0 do not count.
Slowest latest_of(const std::vector<double>& seconds);

// Compares the rate of each step with that of a run's first steps, as of a drive that is throttled
// later.
class RateSinceStart {
public:
    // How many times as long as at the start the step took for its bytes; 1 while that is not
    // known. The first step does not count, because it allocates.
    double times(double bytes, double seconds);

private:
    int steps_ = 0;
    double at_start_ = 0;  // bytes per second, the least of the first steps
};

// values[i] / others[i]. Compares within each round, because the load of a shared machine varies.
std::vector<double> ratios_of(const std::vector<double>& values, const std::vector<double>& others);

// Wall-clock seconds that `work` takes.
template <typename Work>
double seconds_of(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace nearstep
