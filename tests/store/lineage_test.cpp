// Tests which steps of a run belong to the history of a later one.
#include "store/lineage.hpp"

#include "support/test.hpp"

namespace nearstep::store {
namespace {

TEST(LastStep, OfARunIsWhereTheLineLeftIt) {
    const Lineage line{.run = "c", .parents = {{"b", 9}, {"a", 4}}};
    EXPECT_EQ(last_step_of(line, "c"), std::numeric_limits<std::int64_t>::max());
    EXPECT_EQ(last_step_of(line, "b"), 9);
    EXPECT_EQ(last_step_of(line, "a"), 4);
    EXPECT_EQ(last_step_of(line, "d"), std::nullopt);
}

// c went back to step 3, before b had left a at step 7: the steps 4 to 7 of a are given up, too.
TEST(LastStep, IsNotAfterTheStepThatALaterRunWentBackTo) {
    const Lineage first{.run = "a", .parents = {}};
    const Lineage line = branch_off(branch_off(first, 7, "b"), 3, "c");
    EXPECT_EQ(last_step_of(line, "b"), 3);
    EXPECT_EQ(last_step_of(line, "a"), 3);
    EXPECT_EQ(last_step_of(branch_off(line, 5, "d"), "a"), 3);
}

}  // namespace
}  // namespace nearstep::store
