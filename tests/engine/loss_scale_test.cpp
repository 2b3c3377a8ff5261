// Tests how the loss scale follows good and bad steps.
#include "engine/route/loss_scale.hpp"

#include "support/test.hpp"

namespace nearstep::engine {
namespace {

TEST(LossScale, HalvesAfterABadStepAndDoublesAfterEnoughGoodOnes) {
    LossScale scale(Dtype::fp16, {.first = 1024, .growth_steps = 3});
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
    EXPECT_EQ(scale.value(), 1);  // never below 1
}

TEST(LossScale, StaysOneForBf16) {
    LossScale scale(Dtype::bf16, {});
    scale.after_step(false);
    scale.restore(8, 1);
    EXPECT_EQ(scale.value(), 1);
}

}  // namespace
}  // namespace nearstep::engine
