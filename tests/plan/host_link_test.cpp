#include "plan/host_link.hpp"

#include <gtest/gtest.h>

namespace nearstep::plan {
namespace {

// SmartSSDs, 4e9 parameters.
Site smart_ssds(int csds) {
    Site site;
    site.csds = csds;
    site.device_read = 3e9;
    site.device_write = 1.8e9;
    site.host_link = 12e9;
    return site;
}

constexpr double kState = 48e9;
constexpr double kGradients = 16e9;

TEST(TheUpdateOfBase, IsDividedUntilTheHostLinkIsFull) {
    EXPECT_NEAR(base_update_seconds(smart_ssds(1), kState, kGradients), 48 / 1.8, 1e-9);
    EXPECT_NEAR(base_update_seconds(smart_ssds(4), kState, kGradients), 48 / 7.2, 1e-9);
    EXPECT_NEAR(base_update_seconds(smart_ssds(6), kState, kGradients), 64 / 12.0, 1e-9);
    EXPECT_NEAR(base_update_seconds(smart_ssds(10), kState, kGradients), 64 / 12.0, 1e-9);
    EXPECT_EQ(base_update_seconds({}, kState, kGradients), 0);
}

// Figures 3b and 9 show 6.4 GB/s in both directions together from 4 drives on. For 10 drives the
// paper gives 17.75 s.
TEST(TheUpdateOfBase, IsThePapersWithTheRateItsBaselineReached) {
    for (const auto& [csds, expected] : {std::pair(10, 17.75), std::pair(4, 17.5)}) {
        Site site = smart_ssds(csds);
        site.host_link_total = 6.4e9;
        EXPECT_NEAR(base_update_seconds(site, kState, kGradients), expected, 0.5);
    }
}

TEST(TheGradientsOfBase, CrossTheHostLinkAndReachTheDrives) {
    EXPECT_NEAR(base_gradient_seconds(smart_ssds(2), kGradients), 16 / 3.6, 1e-9);
    EXPECT_NEAR(base_gradient_seconds(smart_ssds(10), kGradients), 16 / 12.0, 1e-9);
}

TEST(TrafficOfGpus, SharesTheDirectionOfTheGradients) {
    Site site = smart_ssds(1);
    EXPECT_NEAR(gpu_forward_seconds(site, 8e9), 8 / 12.0, 1e-9);
    EXPECT_NEAR(gpu_backward_seconds(site, 8e9, 8e9), (8 + 8) / 12.0, 1e-9);
    site.host_link_total = 6e9;
    EXPECT_NEAR(gpu_backward_seconds(site, 8e9, 8e9), (8 + 8 + 8) / 6.0, 1e-9);
}

}  // namespace
}  // namespace nearstep::plan
