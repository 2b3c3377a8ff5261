#include "csd/engine.hpp"

#include "csd/engine_fixture.hpp"
#include "csd/published_update.hpp"
#include "memory/buffer.hpp"
#include "support/test.hpp"

#include <ostream>

namespace nearstep::csd {

namespace {

using arith::kEdges;
using arith::kEdgeTiles;
using arith::sane_scalars;
// Every combination of values at the edges of fp32. Each gradient with its moments has its own
// block with every master, so that a NaN does not spoil other moments.
Arrays edge_arrays(std::size_t tile) {
    Arrays arrays;
    for (std::size_t i = 0; i < kTileElems; ++i) {
        const std::size_t block = tile * (kTileElems / arith::kBlockElems) + i / arith::kBlockElems;
        arrays.gradient[i] = kEdges.at(block % 14);
        arrays.moment1[i] = kEdges.at(block / 14 % 14);
        arrays.moment2[i] = kEdges.at(block / 196 % 14);
        arrays.master[i] = kEdges.at(i % arith::kBlockElems % 14);
    }
    return arrays;
}

using Case = std::tuple<Engine, Optimizer, StateFormat>;

class EngineOf : public testing::TestWithParam<Case> {
protected:
    static const Engine& scalar() {
        static const Engine first = engines().front();
        return first;
    }
    static const Engine& engine() { return std::get<0>(GetParam()); }
    static UpdateScalars scalars() { return sane_scalars(std::get<1>(GetParam())); }
    static StateFormat format() { return std::get<2>(GetParam()); }
};

TEST_P(EngineOf, GivesTheBitsOfTheScalarEngine) {
    for (const Dtype gradient : {Dtype::fp32, Dtype::bf16}) {
        for (const Dtype parameters : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
            Tile expected(format(), random_arrays(1), gradient, parameters);
            Tile seen = expected;
            const std::vector<float> before = seen.widened().master;
            UpdateScalars of_step = scalars();
            for (int step = 0; step < 3; ++step) {
                ++of_step.random_key;
                expected.update(scalar(), of_step, 0, kTileElems);
                seen.update(engine(), of_step, 0, kTileElems);
            }
            // A bf16 master often keeps its value for a few steps.
            EXPECT_GT(differences(before, seen.widened().master), kTileElems / 100);
            EXPECT_TRUE(has_same_bytes(expected, seen))
                << name_of(gradient) << " " << name_of(parameters);
        }
    }
}

// With one group, with two, and with a skipped one; past the caches or through them.
TEST_P(EngineOf, GivesTheSameBitsBesideTheOldState) {
    const std::size_t border = Tile::kNumber * kTileElems + kTileElems / 2 + 3;
    const GroupMap two({{GroupRun{border, 0}, GroupRun{border + kTileElems, 1}}});
    for (const Dtype gradient : {Dtype::fp32, Dtype::bf16}) {
        for (const bool is_skipped : {false, true}) {
            for (const GroupMap& groups : {GroupMap(), two}) {
                StepScalars of_step = scalars();
                of_step.is_skipped[0] = is_skipped;
                Tile expected(format(), random_arrays(4), gradient, Dtype::bf16);
                Tile old = expected;
                memory::Buffer beside(old.payload().size());
                UpdateRun run = old.run_of(of_step.random_key, 0, kTileElems);
                run.old = run.state;
                run.state = state_of_tile(format(), beside.span(), 1, 0);
                run.streams = is_skipped || gradient == Dtype::fp32;
                csd::update(engine(), of_step, groups, Tile::kNumber * kTileElems, run);
                expected.update(engine(), of_step, groups, 0, kTileElems);
                EXPECT_TRUE(std::ranges::equal(beside.span(), expected.payload()));
                EXPECT_EQ(old.parameters(), expected.parameters());
            }
        }
    }
}

TEST_P(EngineOf, LeavesNeighboursOfAnyRunAlone) {
    Tile expected(format(), random_arrays(2), Dtype::bf16, Dtype::bf16);
    Tile seen = expected;
    for (std::size_t count = 0; count < 80; ++count) {
        const std::size_t begin = count * 3 * arith::kBlockElems;
        const std::size_t run = count < 40 ? count : count * 7;  // shorter and longer than a block
        for (std::size_t at = 0; at < run; at += arith::kBlockElems) {
            expected.update(scalar(), scalars(), begin + at,
                            std::min(run - at, arith::kBlockElems));
        }
        seen.update(engine(), scalars(), begin, run);
    }
    EXPECT_TRUE(has_same_bytes(expected, seen));
}

TEST_P(EngineOf, AgreesOnDenormalsInfinitiesAndNan) {
    UpdateScalars no_epsilon = scalars();
    no_epsilon.epsilon = 0;
    for (const UpdateScalars& one : {scalars(), no_epsilon}) {
        for (std::size_t tile = 0; tile < kEdgeTiles; ++tile) {
            for (const Dtype dtype : {Dtype::bf16, Dtype::fp32}) {
                Tile expected(format(), edge_arrays(tile), dtype, dtype);
                Tile seen = expected;
                expected.update(scalar(), one, 0, kTileElems);
                seen.update(engine(), one, 0, kTileElems);
                expect_equal(expected, seen);
            }
        }
    }
}

TEST_P(EngineOf, RoundsMastersToTheParametersThatTheUpdateGave) {
    for (const Dtype parameters : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
        for (const Arrays& arrays : {random_arrays(1), edge_arrays(3), edge_arrays(10)}) {
            Tile tile(format(), arrays, Dtype::bf16, parameters);
            const std::vector<std::byte> before = tile.rounded(engine(), kTileElems);
            tile.update(engine(), scalars(), 0, kTileElems);
            EXPECT_EQ(tile.rounded(engine(), kTileElems), tile.parameters());
            EXPECT_NE(before, tile.parameters());
            // It also stops at the given count.
            const std::size_t bytes = 1000 * size_bytes(parameters);
            const std::vector<std::byte> part = tile.rounded(engine(), 1000);
            EXPECT_TRUE(std::equal(part.begin(), part.begin() + static_cast<std::ptrdiff_t>(bytes),
                                   tile.parameters().begin()));
            EXPECT_EQ(part[bytes], std::byte{0xEE});
        }
    }
}

TEST_P(EngineOf, KeepsPaddingZero) {
    Tile tile(format(), Arrays(), Dtype::bf16, Dtype::bf16);
    Tile zeros = tile;
    tile.update(engine(), scalars(), 0, kTileElems);
    EXPECT_TRUE(has_same_bytes(tile, zeros));
    EXPECT_TRUE(
        std::ranges::all_of(zeros.payload(), [](std::byte b) { return b == std::byte{0}; }));
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
    return std::string(std::get<0>(info.param).name) + "_" + name_of(std::get<1>(info.param)) +
           "_" + name_of(std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(ThisCpu, EngineOf,
                         testing::Combine(testing::ValuesIn(engines()),
                                          testing::ValuesIn(kOptimizers),
                                          testing::ValuesIn(kStateFormats)),
                         case_name);

class OptimizerOf : public testing::TestWithParam<Optimizer> {};

TEST_P(OptimizerOf, StaysWithinAFewUlpOfItsPaperInDoublePrecision) {
    Arrays arrays = random_arrays(3);
    for (std::size_t i = 0; i < kTileElems; ++i) {
        // Far from zero, so that the master determines the last place, not the subtracted term.
        arrays.master[i] = std::copysign(0.1F + std::abs(arrays.master[i]), arrays.master[i]);
        arrays.moment1[i] = 0;
        arrays.moment2[i] = 0;
    }
    for (int step = 1; step <= 20; ++step) {
        for (std::size_t i = 0; i < kTileElems; ++i) {
            arrays.gradient[i] =
                static_cast<float>(random_normal(4, static_cast<std::uint64_t>(step), i) * 1e-2);
        }
        const Arrays before = arrays;
        Tile tile(StateFormat::fp32, arrays, Dtype::fp32, Dtype::fp32);
        tile.update(best_engine(), scalars_of_step({.optimizer = GetParam()}, step), 0, kTileElems);
        arrays = tile.widened();
        for (std::size_t i = 0; i < kTileElems; ++i) {
            const Reference old = {before.master[i], before.moment1[i], before.moment2[i], 0, 0};
            const Reference next =
                published({.optimizer = GetParam()}, old, before.gradient[i], step);
            // If terms cancel, the last place is that of the larger term.
            const double gradient = 2 * ulp(next.largest_gradient);
            ASSERT_NEAR(arrays.moment1[i], next.moment1, 3 * ulp(next.largest1) + gradient)
                << "step " << step << " element " << i;
            ASSERT_NEAR(arrays.moment2[i], next.moment2,
                        6 * ulp(next.moment2) + 2 * next.largest_gradient * gradient)
                << "step " << step << " element " << i;
            ASSERT_NEAR(arrays.master[i], next.master, 3 * ulp(next.master))
                << "step " << step << " element " << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerOf, testing::ValuesIn(kOptimizers),
                         [](const testing::TestParamInfo<Optimizer>& optimizer) {
                             return std::string(name_of(optimizer.param));
                         });

TEST(EngineTest, PrefersTheLastOfTheList) {
    EXPECT_STREQ(best_engine().name, engines().back().name);
}

TEST(EngineTest, IncrementsEveryWordAndNoOther) {
    for (const Engine& engine : engines()) {
        std::vector<std::uint64_t> words(103, 41);
        engine.increment(words.data() + 1, 101);
        EXPECT_EQ(std::ranges::count(words, 42U), 101) << engine.name;
        EXPECT_EQ(words.front(), 41U);
        EXPECT_EQ(words.back(), 41U);
    }
}

}  // namespace
}  // namespace nearstep::csd
