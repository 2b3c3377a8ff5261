// Tests how ranks are grouped by nodes.
#include "mpi/topology.hpp"

#include "support/test.hpp"

namespace nearstep::mpi {
namespace {

TEST(Topology, NumbersGroupsInTheOrderOfTheirFirstRank) {
    const Topology topology = group_by({7, 3, 7, 3, 9});
    EXPECT_EQ(topology.groups(), 3);
    EXPECT_EQ(topology.group_of, (std::vector<int>{0, 1, 0, 1, 2}));
    EXPECT_EQ(topology.ranks_of, (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4}}));
    EXPECT_EQ(topology.rank_in_group(0), 0);
    EXPECT_EQ(topology.rank_in_group(3), 1);
    EXPECT_EQ(topology.rank_in_group(4), 0);
}

TEST(Topology, CanLeaveEachRankAlone) {
    const Topology topology = each_rank_alone(3);
    EXPECT_EQ(topology.ranks_of, (std::vector<std::vector<int>>{{0}, {1}, {2}}));
}

TEST(Topology, RestrictedToRanksNumbersThemByTheirPositions) {
    const Topology topology = restrict_to(group_by({0, 1, 0, 1, 2}), {1, 3, 4});
    EXPECT_EQ(topology.group_of, (std::vector<int>{0, 0, 1}));
    EXPECT_EQ(topology.ranks_of, (std::vector<std::vector<int>>{{0, 1}, {2}}));
}

TEST(Topology, SetsTheLastRanksApart) {
    const Topology topology = set_apart_from(group_by({0, 0, 2, 2, 2}), 3);
    EXPECT_EQ(topology.ranks_of, (std::vector<std::vector<int>>{{0, 1}, {2}, {3}, {4}}));
    EXPECT_EQ(topology.groups_below(3), 2);
    EXPECT_EQ(topology.groups_below(2), 1);
}

TEST(Topology, CutsNodesOrJoinsWholeOnes) {
    const Topology nodes = group_by({0, 0, 0, 0, 4, 4, 4, 4, 8});
    using Groups = std::vector<std::vector<int>>;
    EXPECT_EQ(groups_of(nodes, 1, 8).groups(), 9);
    EXPECT_EQ(groups_of(nodes, 2, 8).ranks_of, (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8}}));
    EXPECT_EQ(groups_of(nodes, 4, 8).ranks_of, nodes.ranks_of);
    EXPECT_EQ(groups_of(nodes, 8, 8).ranks_of, (Groups{{0, 1, 2, 3, 4, 5, 6, 7}, {8}}));
    const Topology in_turn = group_by({0, 1, 2, 3, 0, 1, 2, 3});
    EXPECT_EQ(groups_of(in_turn, 4, 8).ranks_of, (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
    const Topology unequal = group_by({0, 0, 2});
    EXPECT_EQ(groups_of(unequal, 2, 3).ranks_of, unequal.ranks_of);
    EXPECT_EQ(groups_of(unequal, 3, 3).groups(), 1);
}

}  // namespace
}  // namespace nearstep::mpi
