#include "train/endurance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace nearstep::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Endurance, IsOfTheDeviceThatIsWrittenMost) {
    // 10 and 20 bytes per step, 5 steps in 50 s: the second device is worn at 2 bytes/s.
    const Endurance endurance = measure_endurance({100, 200}, {150, 300}, 5, 50, 86400 * 2e-12);
    EXPECT_THAT(endurance.written_bytes, ElementsAre(150, 300));
    EXPECT_THAT(endurance.written_bytes_per_step, ElementsAre(10, 20));
    ASSERT_TRUE(endurance.days_to_rated_tbw);
    EXPECT_NEAR(*endurance.days_to_rated_tbw, 1, 1e-9);
    EXPECT_THAT(describe(endurance), HasSubstr("1 days"));
}

TEST(Endurance, SaysNothingOfDaysWithoutARatingOrASteps) {
    EXPECT_FALSE(measure_endurance({0}, {10}, 1, 1, 0).days_to_rated_tbw);
    EXPECT_FALSE(measure_endurance({10}, {10}, 0, 0, 100).days_to_rated_tbw);
    EXPECT_THAT(describe(measure_endurance({0}, {10}, 1, 1, 0)), Not(HasSubstr("days")));
    EXPECT_TRUE(to_json(measure_endurance({0}, {10}, 1, 1, 0))["days_to_rated_tbw"].is_null());
}

}  // namespace
}  // namespace nearstep::train
