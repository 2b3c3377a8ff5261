#include "mpi/topology.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace nearstep::mpi
