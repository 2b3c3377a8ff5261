#include "train/schedule.hpp"

#include <gtest/gtest.h>

namespace nearstep::train {
namespace {

TEST(LearningRate, WarmsUpLinearlyThenFallsAlongACosine) {
    config::TrainSettings settings;
    settings.steps = 110;
    settings.warmup_steps = 10;
    settings.learning_rate = 1e-3;
    settings.final_rate_share = 0.1;
    EXPECT_DOUBLE_EQ(learning_rate(settings, 0), 1e-4);
    EXPECT_DOUBLE_EQ(learning_rate(settings, 9), 1e-3);
    EXPECT_DOUBLE_EQ(learning_rate(settings, 10), 1e-3);
    EXPECT_NEAR(learning_rate(settings, 60), 5.5e-4, 1e-12);
    EXPECT_NEAR(learning_rate(settings, 110), 1e-4, 1e-12);
    EXPECT_NEAR(learning_rate(settings, 1000), 1e-4, 1e-12);
}

TEST(LearningRate, NeedsNoWarmUp) {
    config::TrainSettings settings;
    settings.warmup_steps = 0;
    EXPECT_DOUBLE_EQ(learning_rate(settings, 0), settings.learning_rate);
}

}  // namespace
}  // namespace nearstep::train
