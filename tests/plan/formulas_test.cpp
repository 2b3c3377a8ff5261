// Compares the stand-alone formulas with numbers computed by hand, and with the modules whose
// formats they describe.
#include "plan/formulas.hpp"

#include "codec/codec.hpp"
#include "csd/state_format.hpp"
#include "plan/sample.hpp"
#include "shard/partition.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

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

TEST(DeviceTime, OfSerialIoWithSixteenBitGradientsFromFlashIs88MillionPerSecond) {
    const DeviceTime time = device_time(seven_billion(1), 2, 2, 2);
    EXPECT_NEAR(1 / time.per_parameter(true, 3), 88e6, 0.5e6);
}

TEST(DeviceTime, OfOverlappedIoIsTheFlashWriteRate) {
    const DeviceTime time = device_time(seven_billion(1), 0, 2, 2);
    EXPECT_NEAR(1 / time.per_parameter(false, 3), 150e6, 0.1e6);
}

TEST(DeviceTime, OfEightBitMomentsIsTwiceThatOfFp32) {
    Problem problem = seven_billion(1);
    problem.work.state_bytes = state_bytes_of(arith::StateFormat::q8);
    const DeviceTime time = device_time(problem, 0, 2, 2);
    EXPECT_NEAR(1 / time.per_parameter(false, 3), 300e6, 2e6);
}

// The updater's table: bytes per parameter through the device's memory.
TEST(DeviceTime, CountsEveryByteOfDeviceMemoryTwice) {
    Problem problem = seven_billion(1);
    problem.site.device_memory_rate = 1;
    EXPECT_DOUBLE_EQ(device_time(problem, 0, 4, 2).engine, 60);
    EXPECT_DOUBLE_EQ(device_time(problem, 0, 2, 2).engine, 56);
    EXPECT_DOUBLE_EQ(device_time(problem, 0, 0.5, 2).engine, 53);
}

TEST(DeviceTime, WithTooFewSlotsLeavesLinksIdle) {
    const DeviceTime time{.read = 3, .engine = 3, .write = 3, .deliver = 3};
    EXPECT_DOUBLE_EQ(time.per_parameter(false, 3), 4);
    EXPECT_DOUBLE_EQ(time.per_parameter(false, 4), 3);
}

TEST(UnionShare, OfTwoPercentListsGrowsAsComputedByHand) {
    EXPECT_NEAR(union_share(0.02, 8), 0.15, 0.005);
    EXPECT_NEAR(union_share(0.02, 16), 0.28, 0.005);
    EXPECT_NEAR(union_share(0.02, 64), 0.73, 0.005);
}

// The largest number of lists that costs less than dense 16-bit gradients.
int most_lists_that_pay(Handover handover, double keep) {
    int lists = 1;
    while (handed_bytes(handover, Codec::topk, lists + 1, keep, 2) <= 2.005) {
        ++lists;
    }
    return lists;
}

TEST(Densification, OfRawListsPaysUpTo25And50) {
    EXPECT_NEAR(most_lists_that_pay(Handover::raw, 0.02), 25, 1);
    EXPECT_NEAR(most_lists_that_pay(Handover::raw, 0.01), 50, 1);
}

TEST(Densification, OfMergedListsPaysUpTo34And69) {
    EXPECT_NEAR(most_lists_that_pay(Handover::merged, 0.02), 34, 1);
    EXPECT_NEAR(most_lists_that_pay(Handover::merged, 0.01), 69, 1);
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

}  // namespace
}  // namespace nearstep::plan
