#include "engine/hyper.hpp"

#include <gtest/gtest.h>

namespace nearstep::engine {
namespace {

TEST(ClipFactor, BringsTheNormDownToTheLimitAndNeverUp) {
    EXPECT_DOUBLE_EQ(clip_factor(4, 1), 0.25);
    EXPECT_DOUBLE_EQ(clip_factor(0.5, 1), 1);
    EXPECT_DOUBLE_EQ(clip_factor(4, 0), 1);
}

TEST(UpdateScalars, CorrectTheBiasOfTheFirstUpdate) {
    const Hyper hyper{.rate = 0.01, .decay = 0.1};
    const auto scalars = update_scalars(hyper, 1, 1, 1);
    float master = 1;
    float moment1 = 0;
    float moment2 = 0;
    arith::adamw_lane(scalars, 0.5F, master, moment1, moment2);
    // m / (1 - b1) = g and v / (1 - b2) = g^2, so the first step is the rate itself, after decay.
    EXPECT_NEAR(master, 1 * (1 - 0.01 * hyper.decay) - 0.01, 1e-6);
}

TEST(UpdateScalars, DecayWhereTheOptimizerDecays) {
    Hyper hyper{.rate = 0.01, .decay = 0.5};
    for (const char* name : {"adamw", "lion"}) {
        hyper.optimizer = csd::parse_optimizer(name);
        const auto scalars = update_scalars(hyper, 1, 3, 1);
        EXPECT_EQ(scalars.decay_factor, static_cast<float>(1 - 0.01 * 0.5)) << name;
    }
    for (const char* name : {"adam", "sgd", "adagrad"}) {
        hyper.optimizer = csd::parse_optimizer(name);
        const auto scalars = update_scalars(hyper, 1, 3, 1);
        EXPECT_EQ(scalars.gradient_decay, 0.5F) << name;
    }
}

TEST(UpdateScalars, CorrectNoBiasOfOptimizersThatHaveNone) {
    Hyper hyper{.rate = 0.01};
    for (const char* name : {"sgd", "adagrad", "lion"}) {
        hyper.optimizer = csd::parse_optimizer(name);
        EXPECT_EQ(update_scalars(hyper, 1, 1, 1).step_size, 0.01F) << name;
    }
}

TEST(UpdateScalars, RoundEachUpdateOfEachRunWithNumbersOfItsOwn) {
    std::uint64_t seed = 1;
    const auto key = [&](std::int64_t update) {
        return update_scalars({}, seed, update, 1).random_key;
    };
    EXPECT_EQ(key(5), key(5));
    EXPECT_NE(key(5), key(6));
    const std::uint64_t of_this_seed = key(5);
    seed += 1;
    EXPECT_NE(key(5), of_this_seed);
}

}  // namespace
}  // namespace nearstep::engine
