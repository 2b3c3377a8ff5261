// Computes medians and the slowest rank. Used by the engine, reports and benches.
#include "base/statistics.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace nearstep {

Summary summary_of(std::vector<double> values) {
    expects(!values.empty(), "there is a value to take the median of");
    std::ranges::sort(values);
    const std::size_t half = values.size() / 2;
    const double median =
        values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
    return {.median = median, .least = values.front(), .most = values.back()};
}

Slowest slowest_of(const std::vector<double>& seconds) {
    std::vector<double> some;
    std::ranges::copy_if(seconds, std::back_inserter(some), [](double one) { return one > 0; });
    if (some.empty()) {
        return {};
    }
    const auto median = some.begin() + (std::ssize(some) - 1) / 2;
    std::ranges::nth_element(some, median);
    const auto slowest = std::ranges::max_element(seconds);
    return {.rank = static_cast<int>(slowest - seconds.begin()), .times = *slowest / *median};
}

Slowest latest_of(const std::vector<double>& seconds) {
    std::vector<double> some;
    std::ranges::copy_if(seconds, std::back_inserter(some), [](double one) { return one > 0; });
    if (some.empty()) {
        return {};
    }
    std::ranges::sort(some);
    const auto latest = std::ranges::find(seconds, some.front());
    return {.rank = static_cast<int>(latest - seconds.begin()),
            .times = some[some.size() / 2] / some.front()};
}

double RateSinceStart::times(double bytes, double seconds) {
    constexpr int kFirst = 5;
    if (bytes <= 0 || seconds <= 0) {
        return 1;
    }
    const double rate = bytes / seconds;
    ++steps_;
    if (steps_ > 1 && steps_ <= kFirst) {
        at_start_ = steps_ == 2 ? rate : std::min(at_start_, rate);
    }
    return steps_ > kFirst ? at_start_ / rate : 1;
}

std::vector<double> ratios_of(const std::vector<double>& values,
                              const std::vector<double>& others) {
    expects(values.size() == others.size(), "both have a value of every round");
    std::vector<double> ratios;
    for (std::size_t i = 0; i < values.size(); ++i) {
        ratios.push_back(values[i] / others[i]);
    }
    return ratios;
}

}  // namespace nearstep
