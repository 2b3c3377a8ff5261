// Tests which parameter group each element belongs to.
#include "csd/group_map.hpp"

#include "support/test.hpp"

namespace nearstep::csd {
namespace {

constexpr std::size_t kNoEnd = std::numeric_limits<std::size_t>::max();

std::vector<std::size_t> ends_of(std::span<const GroupRun> runs) {
    std::vector<std::size_t> ends;
    for (const GroupRun& run : runs) {
        ends.push_back(run.end);
    }
    return ends;
}

GroupMap map_of(const std::vector<GroupRun>& runs) { return GroupMap(runs); }

TEST(GroupMapTest, PutsEveryElementIntoGroup0ByDefault) {
    const GroupMap map;
    EXPECT_EQ(map.groups(), 1U);
    ASSERT_EQ(map.runs_in(17, 1ULL << 40U).size(), 1U);
    EXPECT_EQ(map.runs_in(17, 18).front().group, 0U);
}

TEST(GroupMapTest, MergesNeighboursOfOneGroupAndDropsWhatIsEmpty) {
    const GroupMap map = map_of({{3, 1}, {3, 0}, {10, 1}, {11, 2}, {11, 1}, {40, 2}, {50, 0}});
    EXPECT_EQ(ends_of(map.runs()), (std::vector<std::size_t>{10, 40, kNoEnd}));
    EXPECT_EQ(map.groups(), 3U);
}

TEST(GroupMapTest, GivesThePaddingToTheLastGroup) {
    const GroupMap map = map_of({{5, 0}, {9, 3}});
    EXPECT_EQ(map.runs_in(1000, 2000).front().group, 3U);
}

TEST(GroupMapTest, FindsTheRunsOfARange) {
    const GroupMap map = map_of({{10, 0}, {20, 1}, {30, 0}, {40, 2}});
    EXPECT_EQ(ends_of(map.runs_in(0, 10)), (std::vector<std::size_t>{10}));
    EXPECT_EQ(ends_of(map.runs_in(9, 11)), (std::vector<std::size_t>{10, 20}));
    EXPECT_EQ(ends_of(map.runs_in(10, 30)), (std::vector<std::size_t>{20, 30}));
    EXPECT_EQ(ends_of(map.runs_in(10, 31)), (std::vector<std::size_t>{20, 30, kNoEnd}));
    EXPECT_EQ(ends_of(map.runs_in(35, 100)), (std::vector<std::size_t>{kNoEnd}));
}

TEST(GroupMapTest, RefusesWhatIsNoMap) {
    EXPECT_THROW(map_of({}), ContractError);
    EXPECT_THROW(map_of({{0, 0}}), ContractError);
    EXPECT_THROW(map_of({{5, 0}, {4, 1}}), ContractError);
    EXPECT_THROW(map_of({{5, kMostGroups}}), ContractError);
}

}  // namespace
}  // namespace nearstep::csd
