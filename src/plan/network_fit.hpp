// Latency and rate of a network, from how long messages of several sizes took.
#pragma once

#include <span>

namespace nearstep::plan {

struct TimedBytes {
    double bytes = 0;
    double seconds = 0;
};

// seconds = latency_s + bytes / bytes_per_s
struct NetworkFit {
    double latency_s = 0;
    double bytes_per_s = 0;
    double largest_miss = 0;  // |fitted / measured - 1| of the sample that it meets worst
};

// The line with the least squares of relative misses, so that small messages decide on the latency
// and large ones on the rate. Where that is no latency above zero, there is none, and the rate is
// the largest message's. Of at least one sample, each with bytes and seconds above zero.
NetworkFit fit_network(std::span<const TimedBytes> samples);

}  // namespace nearstep::plan
