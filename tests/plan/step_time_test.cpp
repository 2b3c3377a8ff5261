#include "plan/step_time.hpp"

#include <gtest/gtest.h>

namespace nearstep::plan {
namespace {

// The paper's GPT-2 of 4.0 B parameters on SmartSSDs, with 16-bit gradients and parameters.
constexpr double kParameters = 4e9;
constexpr StepBytes kNear = {.parameters = kParameters,
                             .state = 12 * kParameters,
                             .gradients = 2 * kParameters,
                             .new_parameters = 2 * kParameters};
constexpr StepBytes kBase = {.parameters = kParameters,
                             .state = 12 * kParameters,
                             .gradients = 4 * kParameters,
                             .gradients_back = 4 * kParameters};
constexpr LinkRates kSmartSsd = {.device_read = 3e9, .device_write = 1.8e9, .host = 12e9};

TEST(TheUpdateOfOneDevice, AddsItsPartsUpOrHidesTheShorterOnes) {
    EXPECT_NEAR(update_seconds_of_one(kNear, kSmartSsd, Handler::serial), 16 + 26.667, 1e-3);
    EXPECT_NEAR(update_seconds_of_one(kNear, kSmartSsd, Handler::overlapped), 26.667, 1e-3);
}

TEST(TheUpdateOfOneDevice, ReadsItsFirstSubgroupBeforeItWrites) {
    EXPECT_NEAR(fill_seconds(kNear, kSmartSsd, 1, 1), 16, 1e-9);
    EXPECT_NEAR(fill_seconds(kNear, kSmartSsd, 10, 8), 0.2, 1e-9);
    LinkRates rates = kSmartSsd;
    rates.updates = 1e8;  // the engine's 40 s hide all but the first read and last write
    EXPECT_NEAR(fill_seconds(kNear, rates, 1, 10), 1.6 + 2.6667, 1e-4);
    EXPECT_EQ(fill_seconds(kNear, {}, 3, 4), 0);
}

TEST(TheUpdateOfOneDevice, HasTheEngineAmongItsParts) {
    LinkRates rates = kSmartSsd;
    rates.updates = 1e8;
    EXPECT_NEAR(update_seconds_of_one(kNear, rates, Handler::serial), 16 + 40 + 26.667, 1e-3);
    EXPECT_NEAR(update_seconds_of_one(kNear, rates, Handler::overlapped), 40, 1e-9);
}

TEST(TheUpdateOfManyDevices, DividesUntilTheNewParametersFillTheHostLink) {
    EXPECT_NEAR(update_seconds(kNear, kSmartSsd, Handler::overlapped, 10), 2.6667, 1e-4);
    // 8 GB of new parameters take 2.667 s from one device, and 0.667 s from four or more.
    EXPECT_NEAR(update_seconds(kNear, kSmartSsd, Handler::overlapped, 40), 0.6667, 1e-4);
    EXPECT_NEAR(update_seconds(kNear, kSmartSsd, Handler::overlapped, 400), 0.6667, 1e-4);
}

TEST(TheDelivery, CrossesTheHostLinkWhateverTheDevices) {
    LinkRates rates = kSmartSsd;
    EXPECT_NEAR(delivery_seconds(kNear, rates), 8 / 12.0, 1e-9);
    rates.host_total = 6e9;
    EXPECT_NEAR(delivery_seconds(kNear, rates), 8 / 6.0, 1e-9);
    EXPECT_EQ(delivery_seconds(kBase, rates), 0);
}

TEST(TheUpdateOfManyDevices, TakesTheNarrowerRateOfTheHostLink) {
    LinkRates rates = kSmartSsd;
    rates.host_total = 6e9;
    EXPECT_NEAR(update_seconds(kNear, rates, Handler::overlapped, 400), 1.3333, 1e-4);
}

TEST(TheUpdateOfManyDevices, HasNoLimitWhereNoRateIsGiven) {
    EXPECT_EQ(update_seconds(kNear, {}, Handler::serial, 1), 0);
    EXPECT_NEAR(update_seconds(kNear, {.host = 8e9}, Handler::serial, 3), 1, 1e-9);
    EXPECT_NEAR(update_seconds(kNear, {.device_read = 8e9}, Handler::overlapped, 4),
                kNear.state / 8e9 / 4, 1e-9);
}

TEST(TheUpdateOfBase, IsDividedUntilTheHostLinkIsFull) {
    EXPECT_NEAR(base_update_seconds(kBase, kSmartSsd, 1), 48 / 1.8, 1e-9);
    EXPECT_NEAR(base_update_seconds(kBase, kSmartSsd, 4), 48 / 7.2, 1e-9);
    EXPECT_NEAR(base_update_seconds(kBase, kSmartSsd, 6), 64 / 12.0, 1e-9);
    EXPECT_NEAR(base_update_seconds(kBase, kSmartSsd, 10), 64 / 12.0, 1e-9);
}

// Figures 3b and 9 show 6.4 GB/s in both directions together from 4 drives on. For 10 drives the
// paper gives 17.75 s.
TEST(TheUpdateOfBase, IsThePapersWithTheRateItsBaselineReached) {
    LinkRates rates = kSmartSsd;
    rates.host_total = 6.4e9;
    EXPECT_NEAR(base_update_seconds(kBase, rates, 10), 17.75, 0.5);
    EXPECT_NEAR(base_update_seconds(kBase, rates, 4), 17.5, 0.5);
}

TEST(TheGradients, CrossTheHostLinkAndInBaseReachTheDrives) {
    EXPECT_NEAR(gradient_seconds(kNear, kSmartSsd), 8 / 12.0, 1e-9);
    EXPECT_NEAR(base_gradient_seconds(kBase, kSmartSsd, 2), 16 / 3.6, 1e-9);
    EXPECT_NEAR(base_gradient_seconds(kBase, kSmartSsd, 10), 16 / 12.0, 1e-9);
}

TEST(TrafficOfGpus, SharesTheDirectionOfTheGradients) {
    StepBytes bytes = kNear;
    bytes.of_gpus = 8e9;  // one copy of the parameters, and as many gradients back
    EXPECT_NEAR(gpu_forward_seconds(bytes, kSmartSsd), 8 / 12.0, 1e-9);
    EXPECT_NEAR(gpu_backward_seconds(bytes, kSmartSsd), (8 + 8) / 12.0, 1e-9);
    LinkRates rates = kSmartSsd;
    rates.host_total = 6e9;
    EXPECT_NEAR(gpu_backward_seconds(bytes, rates), (8 + 8 + 8) / 6.0, 1e-9);
}

TEST(TheNetwork, TakesWhatLeavesTheNode) {
    const LinkRates rates = {.network = 10e9, .network_latency_s = 1e-3};
    EXPECT_NEAR(network_seconds(5e9, 0, rates), 0.5, 1e-12);
    EXPECT_NEAR(network_seconds(5e9, 30, rates), 0.53, 1e-12);
    EXPECT_EQ(network_seconds(0, 30, rates), 0);
    EXPECT_EQ(network_seconds(5e9, 30, {}), 0);
}

}  // namespace
}  // namespace nearstep::plan
