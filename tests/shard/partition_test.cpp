// Tests that devices' shards cover all parameters once.
#include "shard/partition.hpp"

#include "support/test.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace nearstep::shard {
namespace {

using Speeds = std::vector<double>;

class ShardOf : public testing::TestWithParam<std::tuple<std::size_t, Speeds, std::size_t>> {
protected:
    Partition partition() const {
        const auto& [parameters, speeds, subgroup_tiles] = GetParam();
        return Partition(
            {.parameters = parameters, .speeds = speeds, .subgroup_tiles = subgroup_tiles});
    }
};

TEST_P(ShardOf, CoversEveryElementExactlyOnce) {
    const Partition p = partition();
    std::size_t next = 0;
    std::size_t elems = 0;
    for (const Subgroup& subgroup : p.subgroups()) {
        ASSERT_EQ(subgroup.tiles.begin, next);
        ASSERT_GT(subgroup.tiles.size(), 0U);
        next = subgroup.tiles.end;
        if (p.tiles() < 100000) {
            for (std::size_t tile = subgroup.tiles.begin; tile < subgroup.tiles.end; ++tile) {
                elems += p.elems_in_tile(tile);
            }
        }
    }
    EXPECT_EQ(next, p.tiles());
    EXPECT_EQ(p.tiles(), (p.parameters() + kTileElems - 1) / kTileElems);
    if (p.tiles() < 100000) {
        EXPECT_EQ(elems, p.parameters());
    }
}

TEST_P(ShardOf, NumbersSubgroupsOfADeviceInForwardOrder) {
    const Partition p = partition();
    std::size_t subgroups = 0;
    for (int device = 0; device < p.devices(); ++device) {
        std::size_t end = 0;
        std::size_t place = 0;
        for (const Subgroup& subgroup : p.subgroups_of(device)) {
            EXPECT_EQ(subgroup.device, device);
            EXPECT_EQ(subgroup.index, place++);
            EXPECT_GE(subgroup.tiles.begin, end);
            end = subgroup.tiles.end;
            ++subgroups;
        }
    }
    EXPECT_EQ(subgroups, p.subgroups().size());
}

TEST_P(ShardOf, FindsTheSubgroupOfATile) {
    const Partition p = partition();
    const std::size_t stride = std::max<std::size_t>(p.tiles() / 97, 1);
    for (std::size_t tile = 0; tile < p.tiles(); tile += stride) {
        const Subgroup& subgroup = p.subgroups()[p.subgroup_of_tile(tile)];
        EXPECT_LE(subgroup.tiles.begin, tile);
        EXPECT_LT(tile, subgroup.tiles.end);
    }
}

TEST_P(ShardOf, GivesEachDeviceItsShareWithinOneTilePerDevice) {
    const auto& [parameters, speeds, subgroup_tiles] = GetParam();
    const Partition p = partition();
    const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    for (int device = 0; device < p.devices(); ++device) {
        const double share =
            static_cast<double>(p.tiles()) * speeds[static_cast<std::size_t>(device)] / sum;
        std::size_t tiles = 0;
        for (const Subgroup& subgroup : p.subgroups_of(device)) {
            tiles += subgroup.tiles.size();
        }
        EXPECT_NEAR(static_cast<double>(tiles), share, static_cast<double>(speeds.size()) + 1)
            << "device " << device;
        EXPECT_LE(p.largest_subgroup_tiles(device), std::max<std::size_t>(subgroup_tiles, 1));
    }
}

constexpr std::size_t kHuge = 10000000019;  // far beyond 2^31

INSTANTIATE_TEST_SUITE_P(
    Sizes, ShardOf,
    testing::Combine(testing::Values(std::size_t{0}, std::size_t{1}, kTileElems - 1, kTileElems,
                                     kTileElems + 1, std::size_t{1000003}, std::size_t{124439808},
                                     kHuge),
                     testing::Values(Speeds{1}, Speeds{1, 1}, Speeds{1, 1, 1, 1, 1},
                                     Speeds{3, 1, 2}, Speeds{50, 1},
                                     Speeds{1.8, 3.0, 1.8, 3.0, 2.2, 1.0, 1.0}),
                     testing::Values(std::size_t{1}, std::size_t{5}, std::size_t{16})));

TEST(Partition, SpreadsTheFirstBlockOverAllDevices) {
    const Partition p(
        {.parameters = 40 * kTileElems, .speeds = Speeds(4, 1.0), .subgroup_tiles = 16});
    std::vector<int> first;
    for (std::size_t i = 0; i < 4; ++i) {
        first.push_back(p.subgroups()[i].device);
    }
    EXPECT_EQ(first, (std::vector<int>{0, 1, 2, 3}));
    EXPECT_LE(p.subgroups()[3].tiles.end,
              10U);  // a quarter of the vector, since four stripes are wanted
}

TEST(Partition, GivesNeighbouringRunsToDevicesOfDifferentNodes) {
    const Partition p({.parameters = 80 * kTileElems,
                       .speeds = Speeds(5, 1.0),
                       .nodes = {0, 0, 1, 2, 2},
                       .subgroup_tiles = 4});
    std::vector<int> devices;
    for (const Subgroup& subgroup : p.subgroups()) {
        EXPECT_EQ(subgroup.tiles.size(), 4U);
        devices.push_back(subgroup.device);
    }
    EXPECT_EQ(devices,
              (std::vector<int>{0, 2, 3, 1, 4, 0, 2, 3, 1, 4, 0, 2, 3, 1, 4, 0, 2, 3, 1, 4}));
    EXPECT_THROW(Partition({.parameters = 10, .speeds = {1, 1}, .nodes = {0}}), ContractError);
}

TEST(Partition, KeepsASlowDeviceBusyAllAlong) {
    const Partition p(
        {.parameters = 4000 * kTileElems, .speeds = {50, 1, 50}, .subgroup_tiles = 16});
    EXPECT_EQ(p.largest_subgroup_tiles(0), 16U);
    EXPECT_EQ(p.largest_subgroup_tiles(1), 1U);
    std::size_t slow = 0;
    for (const Subgroup& subgroup : p.subgroups()) {
        slow += subgroup.device == 1 ? subgroup.tiles.size() : 0;
        const double due = static_cast<double>(subgroup.tiles.end) / 101;
        EXPECT_NEAR(static_cast<double>(slow), due, 1) << "tile " << subgroup.tiles.end;
    }
}

TEST(Partition, GivesNothingToADeviceWithoutSpeed) {
    const Partition p({.parameters = 1001 * kTileElems, .speeds = {1, 0, 3}, .subgroup_tiles = 1});
    EXPECT_TRUE(p.subgroups_of(1).empty());
    EXPECT_EQ(p.subgroups().back().tiles.end, 1001U);
}

TEST(Partition, RefusesToHaveNoDeviceOrASpeedOfZero) {
    EXPECT_THROW(Partition({.parameters = 10, .speeds = {}}), ConfigError);
    EXPECT_THROW(Partition({.parameters = 10, .speeds = {1, -1}}), ConfigError);
    EXPECT_THROW(Partition({.parameters = 10, .speeds = {0, 0}}), ConfigError);
}

// The rule, tile by tile, by which states of all versions were laid out.
std::vector<std::size_t> dealt_by_the_rule(const PartitionSettings& settings) {
    const std::size_t devices = settings.speeds.size();
    const double sum = std::accumulate(settings.speeds.begin(), settings.speeds.end(), 0.0);
    const std::size_t all = tiles_of(settings.parameters);
    const auto widest = static_cast<std::size_t>(static_cast<double>(settings.subgroup_tiles) *
                                                 sum / std::ranges::max(settings.speeds));
    const std::size_t narrow = (all + settings.least_stripes - 1) / settings.least_stripes;
    const std::size_t width = std::max<std::size_t>(std::min(widest, std::max(narrow, devices)), 1);
    std::vector<std::size_t> of_devices(devices, 0);
    std::vector<double> owed(devices, 0.0);
    for (std::size_t begin = 0; begin < all; begin += width) {
        const std::size_t here = std::min(width, all - begin);
        std::vector<std::size_t> given(devices, 0);
        for (std::size_t d = 0; d < devices; ++d) {
            owed[d] += static_cast<double>(here) * (settings.speeds[d] / sum);
        }
        for (std::size_t dealt = 0; dealt < here; ++dealt) {
            std::size_t next = devices;
            for (std::size_t d = 0; d < devices; ++d) {
                if (settings.speeds[d] > 0 && given[d] < settings.subgroup_tiles &&
                    (next == devices || owed[d] > owed[next] + 1e-9)) {
                    next = d;
                }
            }
            ++given[next];
            owed[next] -= 1;
        }
        for (std::size_t d = 0; d < devices; ++d) {
            of_devices[d] += given[d];
        }
    }
    return of_devices;
}

TEST(Partition, GivesTilesByTheRuleOfAllVersions) {
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
        PartitionSettings settings{.parameters = (1 + random() % 700) * kTileElems,
                                   .speeds = std::vector<double>(1 + random() % 23),
                                   .subgroup_tiles = 1 + random() % 9,
                                   .least_stripes = 1 + random() % 5};
        const int kind = round % 4;
        for (double& speed : settings.speeds) {
            const auto drawn = static_cast<double>(random() % 5);
            speed = kind == 0   ? 1
                    : kind == 1 ? drawn + (drawn == 0 && settings.speeds.size() == 1 ? 1 : 0)
                    : kind == 2 ? 1 + 1e-10 * drawn  // equal up to rounding, or nearly so
                                : 0.1 + drawn * 0.3712345;
        }
        if (std::accumulate(settings.speeds.begin(), settings.speeds.end(), 0.0) == 0) {
            continue;
        }
        const Partition partition(settings);
        std::vector<std::size_t> of_devices(settings.speeds.size(), 0);
        for (const Subgroup& subgroup : partition.subgroups()) {
            of_devices[static_cast<std::size_t>(subgroup.device)] += subgroup.tiles.size();
        }
        EXPECT_EQ(of_devices, dealt_by_the_rule(settings)) << "round " << round;
    }
}

TEST(DeviceMap, GivesRanksTheirDevicesAlsoWhenSomeHaveNone) {
    const DeviceMap map({2, 0, 3});
    EXPECT_EQ(map.ranks(), 3);
    EXPECT_EQ(map.devices(), 5);
    EXPECT_EQ(map.first(2), 2);
    EXPECT_EQ(map.count(1), 0);
    const std::vector<int> wanted = {0, 0, 2, 2, 2};
    for (int device = 0; device < map.devices(); ++device) {
        EXPECT_EQ(map.rank_of(device), wanted[static_cast<std::size_t>(device)]);
    }
}

TEST(OwnerOf, IsTheRankWhoseDeviceHoldsTheSubgroup) {
    const DeviceMap map({2, 0, 1});
    const Partition partition(
        {.parameters = 9 * kTileElems, .speeds = Speeds(3, 1.0), .subgroup_tiles = 1});
    for (std::size_t s = 0; s < partition.subgroups().size(); ++s) {
        EXPECT_EQ(owner_of(partition, map, s), partition.subgroups()[s].device < 2 ? 0 : 2);
    }
}

TEST(DeviceMap, RefusesNoDevicesAndNegativeCounts) {
    EXPECT_THROW(DeviceMap({0, 0}), ConfigError);
    EXPECT_THROW(DeviceMap({1, -1}), ConfigError);
}

}  // namespace
}  // namespace nearstep::shard
