// Tests which rank sends which tiles to which.
#include "mpi/exchange/routes.hpp"

#include "support/test.hpp"

namespace nearstep::exchange {
namespace {

using shard::kTileElems;

constexpr std::size_t kRoutedTiles = 60;

TEST(ByRank, HoldsNumbersByRankAndInTheirOrder) {
    const ByRank numbers(3, {{2, 0}, {0, 1}, {2, 2}, {0, 3}, {2, 4}});
    EXPECT_THAT(numbers.order(), ElementsAre(1, 3, 0, 2, 4));
    EXPECT_THAT(numbers.of(0), ElementsAre(1, 3));
    EXPECT_THAT(numbers.of(1), IsEmpty());
    EXPECT_EQ(numbers.first(2), 2U);
    EXPECT_THAT(numbers.blocks(10).bytes, ElementsAre(20, 0, 30));
}

TEST(ByRank, IsOfItsRanks) {
    EXPECT_THROW(ByRank(2, {{2, 0}}), ContractError);
    EXPECT_THROW(ByRank(2, {{-1, 0}}), ContractError);
}

// Consecutive numbers of ranks as groups.
mpi::Topology groups_of(const std::vector<int>& sizes) {
    std::vector<int> label;
    for (std::size_t group = 0; group < sizes.size(); ++group) {
        label.insert(label.end(), static_cast<std::size_t>(sizes[group]), static_cast<int>(group));
    }
    return mpi::group_by(label);
}

// A copy of the state per list of ranks, which have one to three devices of different speeds.
shard::Ownership owners_of(const std::vector<std::vector<int>>& copies, std::uint64_t seed) {
    std::vector<shard::Replica> replicas;
    for (const std::vector<int>& ranks : copies) {
        std::vector<int> devices;
        for (const int rank : ranks) {
            devices.push_back(
                1 + static_cast<int>(random_bits(seed, 1, static_cast<std::uint64_t>(rank)) % 3));
        }
        const shard::DeviceMap map(devices);
        std::vector<double> speeds;
        for (int device = 0; device < map.devices(); ++device) {
            speeds.push_back(0.1 + random_uniform(seed, 2, static_cast<std::uint64_t>(device)));
        }
        replicas.push_back(
            {.ranks = ranks,
             .devices = map,
             .partition = shard::Partition({.parameters = kRoutedTiles * kTileElems - 9,
                                            .speeds = speeds,
                                            .subgroup_tiles = 3})});
    }
    return shard::Ownership(std::move(replicas));
}

struct RoutesCase {
    std::string name;
    std::vector<int> groups;
    std::vector<int> nodes;
    std::vector<std::vector<int>> copies;
    int storage_ranks = 0;
};

class RoutesOf : public testing::TestWithParam<RoutesCase> {};

// One rank sends what the other expects, in the same order, and every payload reaches every owner
// of its tile once.
TEST_P(RoutesOf, AreTheSameSeenFromBothSides) {
    constexpr shard::TileRange kRange{5, kRoutedTiles};
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const shard::Ownership owners = owners_of(GetParam().copies, seed);
        const mpi::Topology groups = groups_of(GetParam().groups);
        const mpi::Topology nodes = groups_of(GetParam().nodes);
        const int ranks = static_cast<int>(nodes.group_of.size());
        const int storage_ranks = GetParam().storage_ranks;
        const auto sources = static_cast<std::size_t>(groups.groups() - storage_ranks);
        std::vector<Route> routes;
        for (int rank = 0; rank < ranks; ++rank) {
            routes.push_back(Routes(owners, groups, nodes, rank, storage_ranks).of(kRange));
        }
        const auto route = [&](int rank) -> const Route& {
            return routes[static_cast<std::size_t>(rank)];
        };
        // (tile, group) of each payload that a rank received or that was passed on to it, by place.
        using Payload = std::pair<std::size_t, std::size_t>;
        std::vector<std::vector<Payload>> received(routes.size());
        std::vector<std::vector<Payload>> passed(routes.size());
        for (int to = 0; to < ranks; ++to) {
            const auto at = static_cast<std::size_t>(to);
            for (int from = 0; from < ranks; ++from) {
                ASSERT_EQ(route(from).sent.count(to), route(to).received.count(from));
                for (const std::uint32_t number : route(from).sent.of(to)) {
                    received[at].emplace_back(
                        route(from).sliced[number],
                        static_cast<std::size_t>(groups.group_of[static_cast<std::size_t>(from)]));
                }
            }
            for (const int from : nodes.ranks_beside(to)) {
                const auto& leaving = route(from).passed;
                ASSERT_EQ(leaving.count(nodes.rank_in_group(to)),
                          route(to).passed_here.count(nodes.rank_in_group(from)));
                for (const std::uint32_t number : leaving.of(nodes.rank_in_group(to))) {
                    EXPECT_FALSE(route(from).owned[number].is_passed_on);
                    for (std::size_t group = 0; group < sources; ++group) {
                        passed[at].emplace_back(route(from).owned[number].tile, group);
                    }
                }
            }
        }
        for (int rank = 0; rank < ranks; ++rank) {
            std::size_t owned = 0;
            for (std::size_t tile = kRange.begin; tile < kRange.end; ++tile) {
                if (!owners.owns(rank, tile)) {
                    continue;
                }
                ASSERT_EQ(route(rank).owned.at(owned).tile, tile);
                const auto& from = route(rank).owned[owned].is_passed_on
                                       ? passed[static_cast<std::size_t>(rank)]
                                       : received[static_cast<std::size_t>(rank)];
                for (std::size_t group = 0; group < sources; ++group) {
                    EXPECT_EQ(from.at(route(rank).places.at(owned * sources + group)),
                              Payload(tile, group));
                }
                ++owned;
            }
            EXPECT_EQ(route(rank).owned.size(), owned);
            EXPECT_EQ(received[static_cast<std::size_t>(rank)].size() +
                          passed[static_cast<std::size_t>(rank)].size(),
                      owned * sources);
        }
    }
}

TEST_P(RoutesOf, GiveEachTileOneSlicerInEachGroup) {
    const shard::Ownership owners = owners_of(GetParam().copies, 3);
    const mpi::Topology groups = groups_of(GetParam().groups);
    const mpi::Topology nodes = groups_of(GetParam().nodes);
    std::set<std::pair<int, std::size_t>> sliced;
    for (int rank = 0; rank < static_cast<int>(groups.group_of.size()); ++rank) {
        const Routes routes(owners, groups, nodes, rank, GetParam().storage_ranks);
        const Route route = routes.of({0, kRoutedTiles});
        EXPECT_EQ(route.slices.size(), routes.group() < routes.sources() ? kRoutedTiles : 0);
        EXPECT_EQ(route.slices.count(groups.rank_in_group(rank)), route.sliced.size());
        for (const std::size_t tile : route.sliced) {
            EXPECT_EQ(routes.slicer(routes.group(), tile), rank);
            EXPECT_TRUE(sliced.emplace(routes.group(), tile).second);
        }
    }
    EXPECT_EQ(sliced.size(),
              kRoutedTiles * static_cast<std::size_t>(groups.groups() - GetParam().storage_ranks));
}

TEST_P(RoutesOf, MayBeOfNoTile) {
    const shard::Ownership owners = owners_of(GetParam().copies, 1);
    const Routes routes(owners, groups_of(GetParam().groups), groups_of(GetParam().nodes), 0);
    const Route route = routes.of({4, 4});
    EXPECT_THAT(route.sliced, IsEmpty());
    EXPECT_THAT(route.owned, IsEmpty());
    EXPECT_EQ(route.sent.size() + route.received.size() + route.passed.size(), 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, RoutesOf,
    testing::Values(RoutesCase{"one_rank", {1}, {1}, {{0}}},
                    RoutesCase{"one_node", {4}, {4}, {{0, 1, 2, 3}}},
                    RoutesCase{"flat", {1, 1, 1, 1}, {4}, {{0, 1, 2, 3}}},
                    RoutesCase{"nodes", {3, 3, 1}, {3, 3, 1}, {{0, 1, 2, 3, 4, 5, 6}}},
                    RoutesCase{"copy_per_node", {3, 2}, {3, 2}, {{0, 1, 2}, {3, 4}}},
                    RoutesCase{"copy_per_rank", {3, 2}, {3, 2}, {{0}, {1}, {2}, {3}, {4}}},
                    RoutesCase{"copies_in_one_node", {5}, {5}, {{0, 1}, {2, 3, 4}}},
                    RoutesCase{
                        "storage_ranks", {3, 2, 1, 1}, {3, 2, 1, 1}, {{0, 1, 2, 3, 4, 5, 6}}, 2},
                    RoutesCase{"flat_and_storage", {1, 1, 1, 1}, {3, 1}, {{0, 1, 2, 3}}, 1},
                    RoutesCase{"copies_of_flat_ranks", {1, 1, 1, 1}, {2, 2}, {{0, 2}, {1, 3}}}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace nearstep::exchange
