// Tests the line of a manifest that says which devices the state was on.
#include "engine/placement/layout_line.hpp"

#include "engine/placement/devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace nearstep::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr std::size_t kElems = 40 * shard::kTileElems;

// Four ranks with two devices each on these nodes.
PlacedSettings placed_on(const std::vector<int>& nodes) {
    PlacedSettings settings;
    settings.csd.per_rank = {2};
    settings.nodes = nodes;
    return settings;
}

shard::Replica copy_of(const PlacedSettings& settings) {
    return make_copy(settings, kElems, {0, 1, 2, 3}, 4);
}

std::string line_of(const std::vector<int>& nodes) {
    const PlacedSettings settings = placed_on(nodes);
    return layout_line(settings, 4, copy_of(settings));
}

// Ranks of the first subgroups.
std::vector<int> first_owners(const std::vector<int>& nodes) {
    const shard::Replica copy = copy_of(placed_on(nodes));
    std::vector<int> ranks;
    for (std::size_t subgroup = 0; subgroup < 8; ++subgroup) {
        ranks.push_back(shard::owner_of(copy.partition, copy.devices, subgroup));
    }
    return ranks;
}

TEST(LayoutLine, NamesNodesIfThereAreSeveralAndDealsRunsOverThem) {
    EXPECT_THAT(line_of({0, 0, 1, 1}), HasSubstr(" nodes=0,0,1,1 tiles_xxh3="));
    EXPECT_THAT(parse_layout(line_of({0, 0, 1, 1}))->nodes, ElementsAre(0, 0, 1, 1));
    EXPECT_THAT(first_owners({0, 0, 1, 1}), ElementsAre(0, 2, 0, 2, 1, 3, 1, 3));
}

// Such lines are those of programs before lines named nodes.
TEST(LayoutLine, WithoutNodesDealsRunsInTheOrderOfDevices) {
    EXPECT_THAT(line_of({}), Not(HasSubstr("nodes")));
    EXPECT_THAT(parse_layout(line_of({}))->nodes, IsEmpty());
    EXPECT_THAT(first_owners({}), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
}

TEST(LayoutLine, IsDamagedIfNotEachRankHasANode) {
    for (const char* nodes : {"0,0,1", "0,0,1,-1", "0,0,1,x", "0,0,1,1,1"}) {
        const std::string line = line_of({0, 0, 1, 1});
        const std::string::size_type at = line.find("0,0,1,1 tiles");
        const std::string damaged = line.substr(0, at) + nodes + line.substr(at + 7);
        EXPECT_FALSE(parse_layout(damaged).has_value()) << damaged;
    }
}

}  // namespace
}  // namespace nearstep::engine
