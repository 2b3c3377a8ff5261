// Compares the stand-alone formulas with numbers computed by hand, and with the modules whose
// formats they describe.
#include "plan/formulas.hpp"

#include "codec/codec.hpp"
#include "csd/state_format.hpp"
#include "plan/sample_problem.hpp"
#include "shard/partition.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

namespace nearstep::plan {
namespace {

// The crossover, rounded to whole nodes.
int crossover(double gather_bytes, double parameters_per_s) {
    return static_cast<int>(std::lround(crossover_nodes(25e9, gather_bytes, 10, parameters_per_s)));
}

TEST(Crossover, OfTheDenseGatherIsAtFifteenAndNineNodes) {
    EXPECT_EQ(crossover(2, 48e6), 27);
    EXPECT_EQ(crossover(2, 88e6), 15);
    EXPECT_EQ(crossover(2, 150e6), 9);
    EXPECT_EQ(crossover(2, 300e6), 5);
}

TEST(Crossover, OfTheDeltaGatherIsAtEightyTwoAndFortyNineNodes) {
    EXPECT_EQ(crossover(0.35, 48e6), 150);
    EXPECT_EQ(crossover(0.35, 88e6), 82);
    EXPECT_EQ(crossover(0.35, 150e6), 49);
    EXPECT_EQ(crossover(0.35, 300e6), 25);
}

TEST(Crossover, HalvesItsDistanceFromOneWithTheNetwork) {
    EXPECT_DOUBLE_EQ(crossover_nodes(12.5e9, 2, 10, 88e6) - 1,
                     (crossover_nodes(25e9, 2, 10, 88e6) - 1) / 2);
}

TEST(DeviceTime, OfSerialIoIs94MillionPerSecond) {
    const DeviceTime time = device_time(seven_billion(1), 2, 2);
    EXPECT_NEAR(1 / time.per_parameter(true, 3), 93.75e6, 0.5e6);
}

TEST(DeviceTime, OfOverlappedIoIsTheFlashWriteRate) {
    const DeviceTime time = device_time(seven_billion(1), 2, 2);
    EXPECT_NEAR(1 / time.per_parameter(false, 3), 150e6, 0.1e6);
}

TEST(DeviceTime, OfEightBitMomentsIsTwiceThatOfFp32) {
    Problem problem = seven_billion(1);
    problem.work.state_bytes = state_bytes_of(arith::StateFormat::q8);
    const DeviceTime time = device_time(problem, 2, 2);
    EXPECT_NEAR(1 / time.per_parameter(false, 3), 300e6, 2e6);
}

// The updater's table: bytes per parameter through the device's memory.
TEST(DeviceTime, CountsEveryByteOfDeviceMemoryTwice) {
    Problem problem = seven_billion(1);
    problem.site.device_memory_rate = 1;
    EXPECT_DOUBLE_EQ(device_time(problem, 4, 2).engine, 60);
    EXPECT_DOUBLE_EQ(device_time(problem, 2, 2).engine, 56);
    EXPECT_DOUBLE_EQ(device_time(problem, 0.5, 2).engine, 53);
}

TEST(DeviceTime, WithTooFewSlotsLeavesLinksIdle) {
    const DeviceTime time{.read = 3, .engine = 3, .write = 3, .deliver = 3};
    EXPECT_DOUBLE_EQ(time.per_parameter(false, 3), 4);
    EXPECT_DOUBLE_EQ(time.per_parameter(false, 4), 3);
}

// The largest number of lists that costs less than dense 16-bit gradients.
int most_lists_that_pay(Handover handover, double keep) {
    int lists = 1;
    while (handover_bytes(handover, Codec::topk, lists + 1, keep, 2) <= 2.005) {
        ++lists;
    }
    return lists;
}

TEST(Densification, OfRawListsPaysUpTo25And50) {
    EXPECT_NEAR(most_lists_that_pay(Handover::raw, 0.02), 25, 1);
    EXPECT_NEAR(most_lists_that_pay(Handover::raw, 0.01), 50, 1);
}

TEST(PayloadBytes, AreThoseOfTheCodecs) {
    for (const Codec of_plan : {Codec::dense, Codec::q8, Codec::q4, Codec::topk}) {
        const std::string name = name_of(of_plan);
        const auto codec = codec::make_codec({.name = name, .keep = 0.01, .dtype = Dtype::bf16});
        EXPECT_DOUBLE_EQ(payload_bytes(of_plan, 0.01, 2) * shard::kTileElems,
                         static_cast<double>(codec->payload_bytes()))
            << name;
    }
    EXPECT_DOUBLE_EQ(payload_bytes(Codec::q8, 0.01, 2), 1.03125);
    EXPECT_DOUBLE_EQ(payload_bytes(Codec::q4, 0.01, 2), 0.53125);
}

TEST(StateBytes, AreThoseOfTheDevices) {
    for (const csd::StateFormat format : csd::kStateFormats) {
        const std::size_t tiles = 64;
        EXPECT_NEAR(state_bytes_of(format) * shard::kTileElems * tiles,
                    static_cast<double>(csd::state_bytes(format, tiles)), 4096)
            << name_of(format);
    }
}

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
