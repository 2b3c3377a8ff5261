// Fits latency and rate to measured messages by least squares. Used by bench/network_bench.cpp.
#include "plan/network_fit.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::plan {

NetworkFit fit_network(std::span<const TimedBytes> samples) {
    expects(!samples.empty(), "there is something to fit");
    // Normal equations of 1 = latency / seconds + (bytes / seconds) / rate over the samples.
    double one_one = 0;
    double one_bytes = 0;
    double bytes_bytes = 0;
    double one = 0;
    double bytes = 0;
    for (const TimedBytes& sample : samples) {
        expects(sample.bytes > 0 && sample.seconds > 0, "a sample has bytes and seconds");
        const double u = 1 / sample.seconds;
        const double v = sample.bytes / sample.seconds;
        one_one += u * u;
        one_bytes += u * v;
        bytes_bytes += v * v;
        one += u;
        bytes += v;
    }
    const auto largest = std::ranges::max_element(samples, {}, &TimedBytes::bytes);
    double latency = 0;
    double per_byte = largest->seconds / largest->bytes;
    const double determinant = one_one * bytes_bytes - one_bytes * one_bytes;
    if (determinant > 1e-9 * one_one * bytes_bytes) {  // else all samples have the same size
        const double with_latency = (one_one * bytes - one_bytes * one) / determinant;
        const double intercept = (bytes_bytes * one - one_bytes * bytes) / determinant;
        if (with_latency > 0 && intercept > 0) {
            latency = intercept;
            per_byte = with_latency;
        }
    }
    NetworkFit fit = {.latency_s = latency, .bytes_per_s = 1 / per_byte};
    for (const TimedBytes& sample : samples) {
        const double fitted = latency + per_byte * sample.bytes;
        fit.largest_miss = std::max(fit.largest_miss, std::abs(fitted / sample.seconds - 1));
    }
    return fit;
}

}  // namespace nearstep::plan
