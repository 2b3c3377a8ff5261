#include "engine/hyper.hpp"

#include "support/test.hpp"

namespace nearstep::engine {
namespace {

arith::UpdateScalars scalars_of(const Hyper& hyper, std::int64_t update) {
    const ScalarSet set{.hyper = hyper, .update = update};
    return step_scalars({&set, 1}, 1, update, 1).of_group[0];
}

TEST(ClipFactor, BringsTheNormDownToTheLimitAndNeverUp) {
    EXPECT_DOUBLE_EQ(clip_factor(4, 1), 0.25);
    EXPECT_DOUBLE_EQ(clip_factor(0.5, 1), 1);
    EXPECT_DOUBLE_EQ(clip_factor(4, 0), 1);
}

TEST(UpdateScalars, CorrectTheBiasOfTheFirstUpdate) {
    const Hyper hyper{.rate = 0.01, .decay = 0.1};
    const auto scalars = scalars_of(hyper, 1);
    float master = 1;
    float moment1 = 0;
    float moment2 = 0;
    arith::update_lane(csd::Optimizer::adamw, scalars, 0.5F, master, moment1, moment2);
    // m / (1 - b1) = g and v / (1 - b2) = g^2, so the first step is the learning rate, after decay.
    EXPECT_NEAR(master, 1 * (1 - 0.01 * hyper.decay) - 0.01, 1e-6);
}

TEST(UpdateScalars, DecayWhereTheOptimizerDecays) {
    Hyper hyper{.rate = 0.01, .decay = 0.5};
    for (const auto optimizer : {csd::Optimizer::adamw, csd::Optimizer::lion}) {
        hyper.optimizer = optimizer;
        const auto scalars = scalars_of(hyper, 3);
        EXPECT_EQ(scalars.decay_factor, static_cast<float>(1 - 0.01 * 0.5))
            << csd::name_of(optimizer);
    }
    for (const auto optimizer :
         {csd::Optimizer::adam, csd::Optimizer::sgd, csd::Optimizer::adagrad}) {
        hyper.optimizer = optimizer;
        const auto scalars = scalars_of(hyper, 3);
        EXPECT_EQ(scalars.gradient_decay, 0.5F) << csd::name_of(optimizer);
    }
}

TEST(UpdateScalars, CorrectNoBiasOfOptimizersThatHaveNone) {
    Hyper hyper{.rate = 0.01};
    for (const auto optimizer :
         {csd::Optimizer::sgd, csd::Optimizer::adagrad, csd::Optimizer::lion}) {
        hyper.optimizer = optimizer;
        EXPECT_EQ(scalars_of(hyper, 1).step_size, 0.01F) << csd::name_of(optimizer);
    }
}

TEST(UpdateScalars, RoundEachUpdateOfEachRunWithNumbersOfItsOwn) {
    std::uint64_t seed = 1;
    const auto key = [&](std::int64_t update) {
        return step_scalars({}, seed, update, 1).random_key;
    };
    EXPECT_EQ(key(5), key(5));
    EXPECT_NE(key(5), key(6));
    const std::uint64_t of_this_seed = key(5);
    seed += 1;
    EXPECT_NE(key(5), of_this_seed);
}

TEST(StepScalars, AreOfEachSet) {
    const std::vector<ScalarSet> sets = {
        {.hyper = {.rate = 0.01}, .update = 3},
        {.hyper = {.rate = 0.02, .is_skipped = true}, .update = 3}};
    const csd::StepScalars scalars = step_scalars(sets, 1, 3, 0.5);
    EXPECT_FLOAT_EQ(scalars.of_group[1].step_size, 2 * scalars.of_group[0].step_size);
    EXPECT_EQ(scalars.of_group[0].gradient_scale, 0.5F);
    EXPECT_FALSE(scalars.is_skipped[0]);
    EXPECT_TRUE(scalars.is_skipped[1]);
}

}  // namespace
}  // namespace nearstep::engine
