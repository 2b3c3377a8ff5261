// Fits a network's latency and rate to the times of messages of several sizes.
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
    double largest_miss = 0;  // |fitted / measured - 1| of the worst sample
};

// Least squares of relative errors, so small messages determine the latency and large ones the
// rate. If the fit gives no latency above zero, the latency is 0 and the rate is that of the
// largest message. Needs at least one sample; bytes and seconds must be above zero.
NetworkFit fit_network(std::span<const TimedBytes> samples);

}  // namespace nearstep::plan
