// Parameter groups in the updater give the bits of the CPU's engines.
#include "csd/optimizer.hpp"
#include "fpga/same_bits.hpp"
#include "fpga/sample_subgroups.hpp"
#include "fpga/subgroup.hpp"
#include "support/test.hpp"

namespace nearstep::fpga {
namespace {

constexpr std::size_t kGroups = 6;

csd::StepScalars scalars_of_groups() {
    csd::StepScalars scalars(sane_scalars(Optimizer::adamw));
    for (std::size_t group = 0; group < kGroups; ++group) {
        const auto n = static_cast<float>(group);
        UpdateScalars& own = scalars.of_group[group];
        own.optimizer = static_cast<Optimizer>(group % 5);
        own.step_size *= 1 + n;
        own.beta1 -= 0.02F * n;
        own.one_minus_beta1 = 1 - own.beta1;
        own.epsilon *= 1 + n;
        own.decay_factor = 1 - 1e-4F * n;
    }
    return scalars;
}

// Runs alternate between 16 to 320 and 16 to 32,000 elements, around tiles 5 and 6.
csd::GroupMap random_map(std::uint64_t seed) {
    std::vector<csd::GroupRun> runs;
    for (std::size_t end = 4 * kTile; end < 8 * kTile;) {
        const std::uint64_t number = runs.size();
        end += 16 + random_bits(seed, 0, number) % (number % 3 == 0 ? 2000 : 20) * 16;
        runs.push_back({.end = end, .group = random_bits(seed, 1, number) % kGroups});
    }
    return csd::GroupMap(runs);
}

class UpdaterGroupsOf : public testing::TestWithParam<StateFormat> {
protected:
    static Subgroup subgroup(ParameterDelivery delivery) {
        return random_subgroup(
            {.format = GetParam(), .codec = {.name = "dense"}, .tiles = 2, .delivery = delivery},
            3);
    }
};

TEST_P(UpdaterGroupsOf, HaveTheBitsOfTheEngines) {
    for (const auto delivery : {ParameterDelivery::parameters, ParameterDelivery::deltas}) {
        expect_bits_of_engines(subgroup(delivery), scalars_of_groups(), 2, random_map(1));
    }
}

TEST_P(UpdaterGroupsOf, MayBeSkipped) {
    csd::StepScalars scalars = scalars_of_groups();
    scalars.is_skipped[0] = true;
    scalars.is_skipped[3] = true;
    expect_bits_of_engines(subgroup(ParameterDelivery::parameters), scalars, 2, random_map(2));
}

// A moment that no group of the tiles uses is neither read nor written.
TEST_P(UpdaterGroupsOf, LeaveAMomentAloneThatNoneUses) {
    csd::StepScalars scalars(sane_scalars(Optimizer::sgd));
    scalars.of_group[1] = sane_scalars(Optimizer::lion);
    scalars.of_group[2] = sane_scalars(Optimizer::adamw);
    const csd::GroupMap groups(
        std::vector<csd::GroupRun>{{4 * kTile, 2}, {6 * kTile - 16, 0}, {9 * kTile, 1}});
    expect_bits_of_engines(subgroup(ParameterDelivery::parameters), scalars, 2, groups);
}

INSTANTIATE_TEST_SUITE_P(Formats, UpdaterGroupsOf, testing::ValuesIn(kStateFormats));

// If all are skipped, only masters are read and written.
TEST(UpdaterGroups, AllSkippedLeaveTheStateAsItIs) {
    Subgroup subgroup =
        random_subgroup({.format = StateFormat::compact, .codec = {.name = "dense"}}, 4);
    const std::vector<std::byte> before(subgroup.extent().begin(), subgroup.extent().end());
    csd::StepScalars scalars = scalars_of_groups();
    scalars.is_skipped.fill(true);
    subgroup.run_kernel(scalars);
    EXPECT_EQ(subgroup.totals().status, static_cast<std::uint32_t>(UpdaterStatus::done));
    EXPECT_TRUE(std::ranges::equal(subgroup.extent(), before));
}

}  // namespace
}  // namespace nearstep::fpga
