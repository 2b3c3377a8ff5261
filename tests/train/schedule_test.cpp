// Tests learning rates, parameter groups, and a rank's part of a GPU.
#include "train/schedule.hpp"

#include "support/test.hpp"
#include "train/gpu_share.hpp"

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

TEST(Hypers, AreOneUnlessMatricesAloneDecay) {
    const config::TrainSettings settings;
    EXPECT_EQ(hypers(settings, 0).size(), 1U);
    EXPECT_EQ(group_of(settings, 1), 0U);
}

TEST(Hypers, DifferInDecayAlone) {
    config::TrainSettings settings;
    settings.decay = config::Decay::matrices;
    settings.weight_decay = 0.5;
    const std::vector<engine::Hyper> groups = hypers(settings, 3);
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups.at(group_of(settings, 2)).decay, 0.5);
    EXPECT_EQ(groups.at(group_of(settings, 1)).decay, 0);
    EXPECT_EQ(groups[0].rate, groups[1].rate);
    EXPECT_EQ(groups[0].beta2, groups[1].beta2);
}

TEST(GpuBudget, IsARanksPartOfWhatIsFreeOrLess) {
    constexpr std::size_t kFree = 100'000'000'000;
    EXPECT_EQ(gpu_budget(0, kFree, 1), 95'000'000'000U);
    EXPECT_EQ(gpu_budget(0, kFree, 2), 47'500'000'000U);
    EXPECT_EQ(gpu_budget(16, kFree, 2), 16'000'000'000U);
    EXPECT_EQ(gpu_budget(200, kFree, 1), 95'000'000'000U);
}

}  // namespace
}  // namespace nearstep::train
