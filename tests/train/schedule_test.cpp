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

TEST(LossScale, HalvesAfterABadStepAndDoublesAfterEnoughGoodOnes) {
    config::Run run;
    run.model.dtype = Dtype::fp16;
    run.train.loss_scale = 1024;
    run.train.scale_growth_steps = 3;
    LossScale scale(run);
    scale.after_step(true);
    scale.after_step(true);
    scale.after_step(false);
    EXPECT_EQ(scale.value(), 512);
    EXPECT_EQ(scale.good_steps(), 0);
    for (int i = 0; i < 3; ++i) {
        scale.after_step(true);
    }
    EXPECT_EQ(scale.value(), 1024);
    for (int i = 0; i < 20; ++i) {
        scale.after_step(false);
    }
    EXPECT_EQ(scale.value(), 1);  // and not below
}

TEST(LossScale, StaysOneForBf16) {
    LossScale scale{config::Run()};
    scale.after_step(false);
    scale.restore(8, 1);
    EXPECT_EQ(scale.value(), 1);
}

TEST(ClipFactor, BringsTheNormDownToTheLimitAndNeverUp) {
    EXPECT_DOUBLE_EQ(clip_factor(4, 1), 0.25);
    EXPECT_DOUBLE_EQ(clip_factor(0.5, 1), 1);
    EXPECT_DOUBLE_EQ(clip_factor(4, 0), 1);
}

TEST(UpdateScalars, CorrectTheBiasOfTheFirstUpdate) {
    const config::TrainSettings settings;
    const auto scalars = update_scalars(settings, 0.01, 1, 1);
    float master = 1;
    float moment1 = 0;
    float moment2 = 0;
    arith::adamw_lane(scalars, 0.5F, master, moment1, moment2);
    // m / (1 - b1) = g and v / (1 - b2) = g^2, so the first step is the rate itself, after decay.
    EXPECT_NEAR(master, 1 * (1 - 0.01 * settings.weight_decay) - 0.01, 1e-6);
}

TEST(UpdateScalars, DecayWhereTheOptimizerDecays) {
    config::TrainSettings settings;
    settings.weight_decay = 0.5;
    for (const char* name : {"adamw", "lion"}) {
        settings.optimizer = name;
        const auto scalars = update_scalars(settings, 0.01, 3, 1);
        EXPECT_EQ(scalars.decay_factor, static_cast<float>(1 - 0.01 * 0.5)) << name;
    }
    for (const char* name : {"adam", "sgd", "adagrad"}) {
        settings.optimizer = name;
        const auto scalars = update_scalars(settings, 0.01, 3, 1);
        EXPECT_EQ(scalars.gradient_decay, 0.5F) << name;
    }
}

TEST(UpdateScalars, CorrectNoBiasOfOptimizersThatHaveNone) {
    config::TrainSettings settings;
    for (const char* name : {"sgd", "adagrad", "lion"}) {
        settings.optimizer = name;
        EXPECT_EQ(update_scalars(settings, 0.01, 1, 1).step_size, 0.01F) << name;
    }
}

TEST(UpdateScalars, RoundEachUpdateOfEachRunWithNumbersOfItsOwn) {
    config::TrainSettings settings;
    const auto key = [&](std::int64_t update) {
        return update_scalars(settings, 0.01, update, 1).random_key;
    };
    EXPECT_EQ(key(5), key(5));
    EXPECT_NE(key(5), key(6));
    const std::uint64_t of_this_seed = key(5);
    settings.seed += 1;
    EXPECT_NE(key(5), of_this_seed);
}

}  // namespace
}  // namespace nearstep::train
