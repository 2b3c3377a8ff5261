// Tests the latency and rate that are fitted to measured messages.
#include "plan/network_fit.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace nearstep::plan {
namespace {

// A network with 50 us and 2 GB/s.
double seconds_of(double bytes) { return 50e-6 + bytes / 2e9; }

std::vector<TimedBytes> samples_of(const std::vector<double>& sizes) {
    std::vector<TimedBytes> samples;
    for (const double bytes : sizes) {
        samples.push_back({bytes, seconds_of(bytes)});
    }
    return samples;
}

TEST(NetworkFit, RecoversLatencyAndRate) {
    const NetworkFit fit = fit_network(samples_of({4e3, 64e3, 1e6, 16e6}));
    EXPECT_NEAR(fit.latency_s, 50e-6, 1e-11);
    EXPECT_NEAR(fit.bytes_per_s, 2e9, 1);
    EXPECT_LT(fit.largest_miss, 1e-9);
}

TEST(NetworkFit, WeighsSmallMessagesAsMuchAsLargeOnes) {
    std::vector<TimedBytes> samples = samples_of({4e3, 64e3, 1e6, 16e6});
    samples.back().seconds *= 1.1;  // 0.8 ms more, sixteen times the latency
    const NetworkFit fit = fit_network(samples);
    EXPECT_NEAR(fit.latency_s, 50e-6, 5e-6);
    EXPECT_NEAR(fit.bytes_per_s, 1.9e9, 0.1e9);
    EXPECT_GT(fit.largest_miss, 0.02);
    EXPECT_LT(fit.largest_miss, 0.1);
}

TEST(NetworkFit, HasNoLatencyBelowZero) {
    // The burst of a token bucket makes small messages cheaper than in proportion.
    const std::vector<TimedBytes> samples = {{1e5, 1e-5}, {1e6, 1e-3}, {2e6, 2e-3}};
    const NetworkFit fit = fit_network(samples);
    EXPECT_EQ(fit.latency_s, 0);
    EXPECT_DOUBLE_EQ(fit.bytes_per_s, 1e9);
    EXPECT_DOUBLE_EQ(fit.largest_miss, 9);
}

TEST(NetworkFit, OfOneSizeIsItsRate) {
    const NetworkFit fit = fit_network(std::vector<TimedBytes>{{1e6, 1e-3}, {1e6, 1e-3}});
    EXPECT_EQ(fit.latency_s, 0);
    EXPECT_DOUBLE_EQ(fit.bytes_per_s, 1e9);
}

}  // namespace
}  // namespace nearstep::plan
