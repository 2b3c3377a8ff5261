// Parameter groups in the engines: each element is compared with its group's published update.
#include "csd/published_update.hpp"
#include "csd/update_engine_fixture.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

constexpr std::size_t kGroups = 70;
constexpr std::size_t kTileBegin = Tile::kNumber * kTileElems;

// One group in six per optimizer, two for adamw. Settings differ between groups.
Hyper hyper_of(std::size_t group) {
    const auto n = static_cast<double>(group % 6);
    return {.optimizer = kOptimizers.at(group % 6 % kOptimizers.size()),
            .rate = 1e-3 * (1 + n) + 1e-5 * static_cast<double>(group),
            .decay = 0.03 * n,
            .epsilon = 1e-8 * (1 + n),
            .beta1 = 0.8 + 0.03 * n,
            .beta2 = 0.9 + 0.015 * n};
}

StepScalars scalars_of(int step) {
    StepScalars scalars;
    for (std::size_t group = 0; group < kGroups; ++group) {
        scalars.of_group[group] = scalars_of_step(hyper_of(group), step);
    }
    scalars.random_key = 5 + static_cast<std::uint64_t>(step);
    return scalars;
}

// Runs alternate between 1 to 60 and 1 to 3,000 elements. They cover the tile and extend beyond
// both ends.
GroupMap random_map(std::uint64_t seed) {
    std::vector<GroupRun> runs;
    for (std::size_t end = kTileBegin - 100; end < kTileBegin + kTileElems + 100;) {
        const std::uint64_t number = runs.size();
        end += 1 + random_bits(seed, 0, number) % (number % 3 == 0 ? 3000 : 60);
        runs.push_back({.end = end, .group = random_bits(seed, 1, number) % kGroups});
    }
    return GroupMap(runs);
}

// The group of each element of the tile.
std::vector<std::size_t> groups_of(const GroupMap& map) {
    std::vector<std::size_t> groups;
    for (const GroupRun& run : map.runs_in(kTileBegin, kTileBegin + kTileElems)) {
        groups.resize(std::min(run.end - kTileBegin, kTileElems), run.group);
    }
    return groups;
}

// True if all elements of the block belong to one group.
bool is_whole_block(const std::vector<std::size_t>& groups, std::size_t element) {
    const auto begin = groups.begin() + static_cast<std::ptrdiff_t>(element / arith::kBlockElems *
                                                                    arith::kBlockElems);
    return std::all_of(begin, begin + arith::kBlockElems,
                       [&](std::size_t group) { return group == *begin; });
}

using GroupsCase = std::tuple<UpdateEngine, StateFormat>;

class GroupsOf : public testing::TestWithParam<GroupsCase> {
protected:
    static const UpdateEngine& engine() { return std::get<0>(GetParam()); }
    static StateFormat format() { return std::get<1>(GetParam()); }
    static bool has_codes() {
        return format() == StateFormat::q8 || format() == StateFormat::compact;
    }
};

// In all engines but the scalar one.
class FastGroupsOf : public GroupsOf {};

TEST_P(FastGroupsOf, GiveTheBitsOfTheScalarEngine) {
    for (const Dtype gradient : {Dtype::fp32, Dtype::bf16}) {
        for (const Dtype parameters : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
            Tile expected(format(), random_samples(1), gradient, parameters);
            Tile seen = expected;
            const GroupMap map = random_map(7);
            for (int step = 1; step <= 3; ++step) {
                StepScalars scalars = scalars_of(step);
                scalars.is_skipped[static_cast<std::size_t>(step)] = true;
                expected.update(engines().front(), scalars, map, 0, kTileElems);
                seen.update(engine(), scalars, map, 0, kTileElems);
            }
            EXPECT_TRUE(has_same_bytes(expected, seen))
                << name_of(gradient) << " " << name_of(parameters);
        }
    }
}

// Boundaries between groups with equal scalars change nothing.
TEST_P(GroupsOf, OfEqualScalarsGiveTheBitsOfOne) {
    for (const Optimizer optimizer : kOptimizers) {
        for (const Dtype gradient : {Dtype::fp32, Dtype::bf16}) {
            Tile expected(format(), random_samples(2), gradient, Dtype::bf16);
            Tile seen = expected;
            UpdateScalars scalars = scalars_of_step({.optimizer = optimizer}, 3);
            scalars.random_key = 99;
            expected.update(engine(), scalars, 0, kTileElems);
            seen.update(engine(), scalars, random_map(8), 0, kTileElems);
            EXPECT_TRUE(has_same_bytes(expected, seen)) << name_of(optimizer);
        }
    }
}

TEST_P(GroupsOf, GiveTheSameBitsPieceByPiece) {
    Tile expected(format(), random_samples(3), Dtype::fp32, Dtype::bf16);
    Tile seen = expected;
    const GroupMap map = random_map(9);
    expected.update(engine(), scalars_of(1), map, 0, kTileElems);
    for (std::size_t at = 0; at < kTileElems; at += arith::kPieceElems) {
        seen.update(engine(), scalars_of(1), map, at, arith::kPieceElems);
    }
    EXPECT_TRUE(has_same_bytes(expected, seen));
}

TEST_P(GroupsOf, LeaveSkippedGroupsAsTheyAre) {
    Tile tile(format(), random_samples(4), Dtype::bf16, Dtype::bf16);
    const std::vector<std::byte> rounded = tile.rounded(engine(), kTileElems);
    const GroupMap map = random_map(10);
    const std::vector<std::size_t> groups = groups_of(map);
    const Samples before = tile.widened();
    StepScalars scalars = scalars_of(1);
    for (std::size_t group = 2; group < kGroups; group += 6) {
        scalars.is_skipped[group] = true;
    }
    tile.update(engine(), scalars, map, 0, kTileElems);
    const Samples after = tile.widened();
    std::size_t kept = 0;
    std::size_t moved = 0;
    for (std::size_t i = 0; i < kTileElems; ++i) {
        if (groups[i] % 6 != 2) {
            moved += after.master[i] != before.master[i] ? 1U : 0U;
            continue;
        }
        ++kept;
        ASSERT_EQ(bits_of(after.master[i]), bits_of(before.master[i])) << i;
        ASSERT_EQ(tile.parameters()[2 * i], rounded[2 * i]);
        ASSERT_EQ(tile.parameters()[2 * i + 1], rounded[2 * i + 1]);
        if (!has_codes() || is_whole_block(groups, i)) {
            ASSERT_EQ(bits_of(after.moment1[i]), bits_of(before.moment1[i])) << i;
            ASSERT_EQ(bits_of(after.moment2[i]), bits_of(before.moment2[i])) << i;
        }
    }
    EXPECT_GT(kept, kTileElems / 50);
    EXPECT_GT(moved, kTileElems / 50);
}

// Allowed error of a moment in its stored format.
struct Tolerance {
    double moment1 = 0;
    double root2 = 0;
};

Tolerance tolerance_of(StateFormat format, const Samples& stored, std::size_t element) {
    if (format == StateFormat::bf16) {
        return {.moment1 = std::abs(stored.moment1[element]) / 64,
                .root2 = std::sqrt(static_cast<double>(stored.moment2[element])) / 64};
    }
    if (format == StateFormat::fp32) {
        return {};
    }
    Tolerance largest;
    const std::size_t begin = element / arith::kBlockElems * arith::kBlockElems;
    for (std::size_t i = begin; i < begin + arith::kBlockElems; ++i) {
        largest.moment1 = std::max(largest.moment1, std::abs(double{stored.moment1[i]}));
        largest.root2 = std::max(largest.root2, std::sqrt(double{stored.moment2[i]}));
    }
    // Half a step, or a whole one for small second moments, which never become zero.
    return {.moment1 = largest.moment1 / 127 * 0.51, .root2 = largest.root2 / 255 * 1.01};
}

TEST_P(GroupsOf, ComputeEachElementByItsOwnPaperInDoublePrecision) {
    Samples arrays = random_samples(5);
    for (float& master : arrays.master) {
        // Far from zero, so that the master determines the last place, not the subtracted term.
        master = std::copysign(0.1F + std::abs(master), master);
    }
    Tile tile(format(), arrays, Dtype::fp32, Dtype::fp32);
    const GroupMap map = random_map(11);
    const std::vector<std::size_t> groups = groups_of(map);
    for (const int step : {1, 2, 3, 20}) {
        const Samples before = tile.widened();
        tile.update(engine(), scalars_of(step), map, 0, kTileElems);
        const Samples after = tile.widened();
        for (std::size_t i = 0; i < kTileElems; ++i) {
            const Reference old = {before.master[i], before.moment1[i], before.moment2[i], 0, 0};
            const Reference next = published(hyper_of(groups[i]), old, arrays.gradient[i], step);
            const Tolerance stored = tolerance_of(format(), after, i);
            const double gradient = 2 * ulp(next.largest_gradient);
            const double narrowed =
                format() == StateFormat::compact ? std::abs(next.master) / 128 : 0;
            // Narrow moments allow steps as large as the master.
            const double largest = std::max(std::abs(old.master), std::abs(next.master));
            ASSERT_NEAR(after.master[i], next.master, 4 * ulp(largest) + narrowed)
                << "step " << step << " element " << i << " group " << groups[i];
            ASSERT_NEAR(after.moment1[i], next.moment1,
                        3 * ulp(next.largest1) + gradient + stored.moment1)
                << "step " << step << " element " << i << " group " << groups[i];
            const double root2 = std::sqrt(next.moment2);
            ASSERT_NEAR(std::sqrt(double{after.moment2[i]}), root2, 1e-6 * root2 + stored.root2)
                << "step " << step << " element " << i << " group " << groups[i];
        }
    }
}

std::string groups_case_name(const testing::TestParamInfo<GroupsCase>& info) {
    return std::string(std::get<0>(info.param).name) + "_" + name_of(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(ThisCpu, FastGroupsOf,
                         testing::Combine(testing::ValuesIn(fast_engines()),
                                          testing::ValuesIn(kStateFormats)),
                         groups_case_name);
INSTANTIATE_TEST_SUITE_P(ThisCpu, GroupsOf,
                         testing::Combine(testing::ValuesIn(engines()),
                                          testing::ValuesIn(kStateFormats)),
                         groups_case_name);

}  // namespace
}  // namespace nearstep::csd
