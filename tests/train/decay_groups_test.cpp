#include "train/decay_groups.hpp"

#include <gtest/gtest.h>

namespace nearstep::train {
namespace {

TEST(DecayGroups, AreOneUnlessMatricesAloneDecay) {
    const config::Run run;
    EXPECT_EQ(decay_groups(run.train, model::describe(run.model)).groups(), 1U);
}

TEST(DecayGroups, HaveEveryTensorOfFewerThanTwoDimensionsApart) {
    config::Run run;
    run.train.decay = "matrices";
    const model::Geometry geometry = model::describe(run.model);
    const csd::GroupMap groups = decay_groups(run.train, geometry);
    EXPECT_EQ(groups.groups(), 2U);
    for (const model::Parameter& parameter : geometry.parameters) {
        const auto runs = groups.runs_in(parameter.offset, parameter.offset + parameter.elems);
        ASSERT_EQ(runs.size(), 1U) << parameter.name;
        EXPECT_EQ(runs.front().group, parameter.shape.size() < 2 ? 1U : 0U) << parameter.name;
    }
}

TEST(StepScalars, DifferInDecayAlone) {
    for (const char* optimizer : {"adamw", "adam"}) {
        config::TrainSettings settings;
        settings.optimizer = optimizer;
        settings.decay = "matrices";
        const csd::StepScalars scalars = step_scalars(settings, 0.01, 3, 0.5);
        const arith::UpdateScalars& decayed = scalars.of_group[0];
        const arith::UpdateScalars& others = scalars.of_group[1];
        EXPECT_TRUE(decayed.decay_factor < 1 || decayed.gradient_decay > 0);
        EXPECT_EQ(others.decay_factor, 1.0F);
        EXPECT_EQ(others.gradient_decay, 0.0F);
        EXPECT_EQ(others.step_size, decayed.step_size);
        EXPECT_EQ(others.gradient_scale, 0.5F);
        EXPECT_EQ(scalars.random_key, decayed.random_key);
    }
}

}  // namespace
}  // namespace nearstep::train
