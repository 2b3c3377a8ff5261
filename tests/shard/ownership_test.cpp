// Tests which ranks own which tiles, with copies on several nodes.
#include "shard/ownership.hpp"

#include "support/test.hpp"

namespace nearstep::shard {
namespace {

constexpr std::size_t kParameters = 13 * kTileElems - 7;

Replica copy_of(const std::vector<int>& ranks, const std::vector<int>& devices) {
    const DeviceMap map(devices);
    return {.ranks = ranks,
            .devices = map,
            .partition = Partition(
                {.parameters = kParameters,
                 .speeds = std::vector<double>(static_cast<std::size_t>(map.devices()), 1.0),
                 .subgroup_tiles = 2})};
}

// Two nodes of two and three ranks with different devices, by the number of state copies.
Ownership global() { return Ownership({copy_of({0, 1, 2, 3, 4}, {1, 2, 1, 0, 3})}); }
Ownership per_node() { return Ownership({copy_of({0, 1}, {1, 2}), copy_of({2, 3, 4}, {1, 0, 3})}); }
Ownership per_rank() {
    return Ownership({copy_of({0}, {1}), copy_of({1}, {2}), copy_of({2}, {1})});
}

TEST(Ownership, HasOneOwnerOfEveryTileInEachCopy) {
    for (const Ownership& owners : {global(), per_node(), per_rank()}) {
        for (std::size_t tile = 0; tile < owners.tiles(); ++tile) {
            for (int number = 0; number < owners.copies(); ++number) {
                const Replica& copy = owners.copy(number);
                const int owner = copy.owner_of_tile(tile);
                EXPECT_EQ(owners.owners_among(copy.ranks, tile), std::vector<int>{owner});
                EXPECT_TRUE(owners.owns(owner, tile));
                EXPECT_EQ(owners.copy_of(owner), number);
            }
        }
    }
}

TEST(Ownership, OfNodesGivesEachNodeAllTilesAndRanksWithoutDevicesNone) {
    const Ownership owners = per_node();
    const std::vector<int> everyone = {0, 1, 2, 3, 4};
    std::vector<int> tiles_of(5, 0);
    for (std::size_t tile = 0; tile < owners.tiles(); ++tile) {
        for (const int owner : owners.owners_among(everyone, tile)) {
            ++tiles_of[static_cast<std::size_t>(owner)];
        }
    }
    EXPECT_EQ(tiles_of[0] + tiles_of[1], 13);
    EXPECT_EQ(tiles_of[2] + tiles_of[4], 13);
    EXPECT_EQ(tiles_of[3], 0);
    EXPECT_GT(tiles_of[1], tiles_of[0]);  // more devices
}

TEST(Ownership, OfRanksGivesEachAllTiles) {
    const Ownership owners = per_rank();
    for (std::size_t tile = 0; tile < owners.tiles(); ++tile) {
        EXPECT_EQ(owners.owners_among(std::vector<int>{2, 0, 1}, tile),
                  (std::vector<int>{2, 0, 1}));
    }
}

TEST(Ownership, RefusesARankInTwoCopiesOrInNone) {
    EXPECT_THROW(Ownership({copy_of({0, 1}, {1, 1}), copy_of({1}, {1})}), Error);
    EXPECT_THROW(Ownership({copy_of({0, 2}, {1, 1})}), std::exception);
    EXPECT_THROW(Ownership({copy_of({0, 1}, {1})}), Error);
}

}  // namespace
}  // namespace nearstep::shard
