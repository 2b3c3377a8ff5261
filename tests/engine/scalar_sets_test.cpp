// Tests the scalars of an update for each optimizer and parameter group.
#include "engine/route/scalar_sets.hpp"

#include "support/test.hpp"

namespace nearstep::engine {
namespace {

arith::UpdateScalars scalars_of(const Hyper& hyper, std::int64_t update) {
    const ScalarSet set{.hyper = hyper, .update = update};
    return step_scalars({&set, 1}, 1, update, 1).of_group[0];
}

TEST(UpdateScalars, CorrectTheBiasOfTheFirstUpdate) {
    const Hyper hyper{.rate = 0.01, .decay = 0.1};
    const auto scalars = scalars_of(hyper, 1);
    float master = 1;
    float moment1 = 0;
    float moment2 = 0;
    arith::update_lane(arith::Optimizer::adamw, scalars, 0.5F, master, moment1, moment2);
    // m / (1 - b1) = g and v / (1 - b2) = g^2, so the first step is the learning rate, after decay.
    EXPECT_NEAR(master, 1 * (1 - 0.01 * hyper.decay) - 0.01, 1e-6);
}

TEST(UpdateScalars, DecayWhereTheOptimizerDecays) {
    Hyper hyper{.rate = 0.01, .decay = 0.5};
    for (const auto optimizer : {arith::Optimizer::adamw, arith::Optimizer::lion}) {
        hyper.optimizer = optimizer;
        const auto scalars = scalars_of(hyper, 3);
        EXPECT_EQ(scalars.decay_factor, static_cast<float>(1 - 0.01 * 0.5))
            << csd::name_of(optimizer);
    }
    for (const auto optimizer :
         {arith::Optimizer::adam, arith::Optimizer::sgd, arith::Optimizer::adagrad}) {
        hyper.optimizer = optimizer;
        const auto scalars = scalars_of(hyper, 3);
        EXPECT_EQ(scalars.gradient_decay, 0.5F) << csd::name_of(optimizer);
    }
}

TEST(UpdateScalars, CorrectNoBiasOfOptimizersThatHaveNone) {
    Hyper hyper{.rate = 0.01};
    for (const auto optimizer :
         {arith::Optimizer::sgd, arith::Optimizer::adagrad, arith::Optimizer::lion}) {
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

// Tensors of 100 elements, of these groups.
Layout layout_of(const std::vector<std::size_t>& groups) {
    Layout layout;
    for (const std::size_t group : groups) {
        layout.tensors.push_back(
            {.name = "t", .shape = {100}, .offset = layout.elems, .group = group});
        layout.elems += 100;
    }
    return layout;
}

StepSettings step_of(std::size_t groups, std::vector<std::size_t> skipped) {
    return {.groups = std::vector<Hyper>(groups), .skipped = std::move(skipped)};
}

// The set of the tensor's elements.
const ScalarSet& set_of(const ScalarSets& sets, std::size_t tensor) {
    const csd::GroupMap elements = sets.elements();
    return sets.sets().at(elements.runs_in(100 * tensor, 100 * tensor + 1).front().group);
}

TEST(ScalarSetsTest, AreTheGroupsWhileNoTensorIsSkipped) {
    ScalarSets sets(layout_of({0, 1, 0}));
    EXPECT_FALSE(sets.begin_step(step_of(2, {}), 7));
    ASSERT_EQ(sets.sets().size(), 2U);
    EXPECT_EQ(set_of(sets, 1).update, 7);
    EXPECT_EQ(sets.elements().runs()[1].group, 1U);
    sets.end_step();
    EXPECT_TRUE(sets.missed().empty());
}

TEST(ScalarSetsTest, CountTheUpdatesOfEachTensor) {
    ScalarSets sets(layout_of({0, 0, 1, 0}));
    EXPECT_TRUE(sets.begin_step(step_of(2, {1}), 1));
    EXPECT_TRUE(set_of(sets, 1).hyper.is_skipped);
    EXPECT_EQ(set_of(sets, 0).update, 1);
    sets.begin_step(step_of(2, {1}), 1);  // the step before was not finite
    sets.end_step();
    StepSettings without_group = step_of(2, {});
    without_group.groups[1].is_skipped = true;
    sets.begin_step(without_group, 2);
    EXPECT_EQ(set_of(sets, 1).update, 1);
    EXPECT_EQ(set_of(sets, 3).update, 2);
    EXPECT_TRUE(set_of(sets, 2).hyper.is_skipped);
    sets.end_step();
    EXPECT_EQ(sets.missed(), (store::MissedUpdates{0, 1, 1}));
    ScalarSets resumed(layout_of({0, 0, 1, 0}));
    resumed.restore(sets.missed());
    StepSettings sgd_in_group_1 = step_of(2, {});
    sgd_in_group_1.groups[1].optimizer = arith::Optimizer::sgd;
    resumed.begin_step(sgd_in_group_1, 3);
    EXPECT_EQ(set_of(resumed, 0).update, 3);
    EXPECT_EQ(set_of(resumed, 1).update, 2);
    EXPECT_EQ(set_of(resumed, 2).update, 3);  // SGD corrects no bias
}

TEST(ScalarSetsTest, AreSharedByTensorsWhoseCorrectionsDifferLeast) {
    // 30 tensors with 1 to 30 updates of their own need 30 sets.
    store::MissedUpdates missed;
    for (std::int64_t i = 0; i < 30; ++i) {
        missed.push_back(29 - i);
    }
    const Layout layout = layout_of(std::vector<std::size_t>(31, 0));
    ScalarSets exact(layout);
    exact.restore(missed);
    exact.begin_step(step_of(1, {30}), 30);
    for (std::size_t i = 0; i < 30; ++i) {
        EXPECT_EQ(set_of(exact, i).update, static_cast<std::int64_t>(i + 1));
    }
    ScalarSets sets(layout, csd::kMostGroupsOfCard);
    sets.restore(missed);
    sets.begin_step(step_of(1, {30}), 30);
    EXPECT_EQ(sets.sets().size(), csd::kMostGroupsOfCard);
    EXPECT_TRUE(set_of(sets, 30).hyper.is_skipped);
    double largest = 0;
    for (std::size_t i = 0; i < 30; ++i) {
        const auto own = static_cast<std::int64_t>(i + 1);
        const ScalarSet& set = set_of(sets, i);
        EXPECT_GE(set.update, own) << i;
        largest = std::max(
            largest, std::abs(bias_correction({}, set.update) / bias_correction({}, own) - 1));
    }
    EXPECT_EQ(set_of(sets, 0).update, 1);  // few updates: corrections differ much
    EXPECT_LT(largest, 0.2);
}

// A step of groups that differ in their learning rates; every `same`-th rate is equal.
StepSettings with_rates(std::size_t groups, std::size_t same) {
    StepSettings step = step_of(groups, {});
    for (std::size_t group = 0; group < groups; ++group) {
        step.groups[group].rate = 1e-3 * static_cast<double>(1 + group % same);
    }
    return step;
}

TEST(ScalarSetsTest, TakeAsManyGroupsWithDifferentSettingsAsTheDevicesDo) {
    std::vector<std::size_t> groups(300);
    std::iota(groups.begin(), groups.end(), 0U);
    const Layout layout = layout_of(groups);
    for (const std::size_t most : {csd::kMostGroupsOfCard, csd::kMostGroups}) {
        ScalarSets sets(layout, most);
        const StepSettings step = with_rates(groups.size(), most);
        sets.begin_step(step, 1);
        for (const std::size_t group : groups) {
            EXPECT_EQ(set_of(sets, group).hyper, step.groups[group]) << group;
        }
        EXPECT_THAT(message_of([&] { sets.begin_step(with_rates(groups.size(), most + 1), 1); }),
                    AllOf(HasSubstr(text(most + 1, " different settings")),
                          HasSubstr(text("take ", most))));
    }
}

}  // namespace
}  // namespace nearstep::engine
