// Tests sizes of groups in placement: words, numbers, and refusals.
#include "config/group_size.hpp"

#include "config/load.hpp"
#include "support/test.hpp"

namespace nearstep::config {
namespace {

constexpr RankCounts kFourNodes{.all = 16, .of_node = 4};
constexpr RankCounts kUnequal{.all = 3, .of_node = 2, .has_equal_nodes = false};

RunSettings parsed(std::vector<std::string> overrides) {
    return parse({.overrides = std::move(overrides), .needs_data = false});
}

// Ranks of parameters, gradients and state.
std::vector<int> sizes_with(const std::vector<std::string>& overrides,
                            const RankCounts& counts = kFourNodes) {
    const Placement resolved = resolved_placement(parsed(overrides), counts);
    return {resolved.parameters.ranks(), resolved.gradients.ranks(), resolved.optimizer.ranks()};
}

TEST(GroupSize, IsAWordOrANumber) {
    EXPECT_THAT(sizes_with({"placement.parameters=replicated", "placement.gradients=node",
                            "placement.optimizer=global"}),
                ElementsAre(1, 4, 16));
    EXPECT_THAT(
        sizes_with({"placement.parameters=2", "placement.gradients=4", "placement.optimizer=8"}),
        ElementsAre(2, 4, 8));
    EXPECT_EQ(GroupSize(8).written(), "8");
    EXPECT_EQ(GroupSize(GroupWord::node).written(), "\"node\"");
    EXPECT_THAT(print(parsed({"placement.optimizer=8"})), HasSubstr("\noptimizer = 8\n"));
}

TEST(GroupSize, WithoutOneIsWhatGoesWithTheRest) {
    EXPECT_THAT(sizes_with({}), ElementsAre(1, 4, 16));
    EXPECT_THAT(sizes_with({"placement.gradients=replicated"}), ElementsAre(1, 1, 16));
    EXPECT_THAT(sizes_with({"placement.optimizer=replicated"}), ElementsAre(1, 1, 1));
    EXPECT_THAT(sizes_with({"placement.optimizer=2"}), ElementsAre(1, 2, 2));
    EXPECT_THAT(sizes_with({"placement.parameters=node"}), ElementsAre(4, 4, 16));
    EXPECT_THAT(sizes_with({"placement.parameters=8"}), ElementsAre(8, 8, 16));
    EXPECT_THAT(sizes_with({"placement.gradients=global"}), ElementsAre(1, 16, 16));
    EXPECT_THAT(sizes_with({}, kUnequal), ElementsAre(1, 2, 3));
}

std::string refusal_of(const std::vector<std::string>& overrides,
                       const RankCounts& counts = kFourNodes) {
    return message_of([&] { sizes_with(overrides, counts); });
}

TEST(GroupSize, IsRefusedWhereNoGroupsCanBeFormed) {
    EXPECT_THAT(refusal_of({"placement.optimizer=5"}), states("placement.optimizer", 5, 16));
    EXPECT_THAT(refusal_of({"placement.optimizer=4"}, {.all = 12, .of_node = 6}),
                states("placement.optimizer", 4, 6));
    EXPECT_THAT(refusal_of({"placement.optimizer=8"}, {.all = 24, .of_node = 6}),
                states("placement.optimizer", 8, 6));
    EXPECT_THAT(
        refusal_of({"placement.optimizer=4"}, {.all = 8, .of_node = 2, .has_equal_nodes = false}),
        states("placement.optimizer", 4, "replicated", "node", "global"));
}

TEST(GroupSize, IsRefusedWhereOneIsNoPartOfTheNext) {
    EXPECT_THAT(refusal_of({"placement.optimizer=node", "placement.gradients=global"}),
                AllOf(HasSubstr("placement.optimizer = \"node\" (4 ranks)"),
                      HasSubstr("placement.gradients = \"global\" (16 ranks)")));
    EXPECT_THAT(refusal_of({"placement.optimizer=replicated", "placement.parameters=node"}),
                AllOf(HasSubstr("placement.gradients = \"auto\" (1 rank)"),
                      HasSubstr("placement.parameters = \"node\" (4 ranks)")));
    EXPECT_THAT(refusal_of({"placement.gradients=2", "placement.parameters=4"}),
                AllOf(HasSubstr("placement.gradients = 2"), HasSubstr("placement.parameters = 4")));
    EXPECT_THAT(
        refusal_of({"placement.gradients=4", "placement.optimizer=6"}, {.all = 12, .of_node = 12}),
        AllOf(HasSubstr("placement.gradients = 4"), HasSubstr("placement.optimizer = 6")));
}

TEST(GroupSize, IsRefusedWithWhatNeedsAnother) {
    EXPECT_THAT(refusal_of({"placement.parameters=8", "csd.storage_ranks=2"}),
                AllOf(HasSubstr("placement.parameters = 8"), HasSubstr("csd.storage_ranks = 2")));
    EXPECT_THAT(refusal_of({"placement.gradients=8", "mode=su+o+c", "compress.codec=q4",
                            "compress.error_feedback=true", "csd.durability=checkpoint"}),
                AllOf(HasSubstr("placement.gradients = 8"), HasSubstr("error_feedback")));
    EXPECT_THAT(refusal_of({"placement.parameters=8", "gather.codec=delta"}),
                AllOf(HasSubstr("placement.parameters = 8"), HasSubstr("gather.codec")));
    EXPECT_THAT(
        refusal_of({"placement.optimizer=node", "csd.storage_ranks=2"}),
        AllOf(HasSubstr("placement.optimizer = \"node\""), HasSubstr("csd.storage_ranks = 2")));
}

}  // namespace
}  // namespace nearstep::config
