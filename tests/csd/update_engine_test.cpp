// Compares the fast update engines with the scalar one, bit for bit.
#include "csd/update_engine.hpp"

#include "csd/update_engine_fixture.hpp"
#include "memory/buffer.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

using arith::kEdgeTiles;
using arith::sane_scalars;

using Case = std::tuple<UpdateEngine, Optimizer, StateFormat>;

class EngineOf : public testing::TestWithParam<Case> {
protected:
    static const UpdateEngine& scalar() {
        static const UpdateEngine first = engines().front();
        return first;
    }
    static const UpdateEngine& engine() { return std::get<0>(GetParam()); }
    static UpdateScalars scalars() { return sane_scalars(std::get<1>(GetParam())); }
    static StateFormat format() { return std::get<2>(GetParam()); }
    // Every optimizer and every format meets each of them.
    static Dtype dtype(std::size_t turn) {
        return arith::dtype_in_turn(std::get<1>(GetParam()), format(), turn);
    }
};

// All but the scalar one.
class FastEngineOf : public EngineOf {};

TEST_P(FastEngineOf, GivesTheBitsOfTheScalarEngine) {
    for (const Dtype gradient : {Dtype::fp32, Dtype::bf16}) {
        for (const Dtype parameters : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
            Tile expected(format(), random_samples(1), gradient, parameters);
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
                Tile expected(format(), random_samples(4), gradient, Dtype::bf16);
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
    Tile expected(format(), random_samples(2), Dtype::bf16, Dtype::bf16);
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

TEST_P(FastEngineOf, AgreesOnDenormalsInfinitiesAndNan) {
    UpdateScalars no_epsilon = scalars();
    no_epsilon.epsilon = 0;
    // The conversion of gradients and parameters does not depend on the scalars.
    for (const auto& [one, type] :
         {std::pair(scalars(), Dtype::bf16), std::pair(no_epsilon, Dtype::fp32)}) {
        for (std::size_t tile = 0; tile < kEdgeTiles; ++tile) {
            Tile expected(format(), edge_samples(tile, 1), type, type);
            Tile seen = expected;
            expected.update(scalar(), one, 0, kTileElems);
            seen.update(engine(), one, 0, kTileElems);
            expect_equal(expected, seen);
        }
    }
}

TEST_P(EngineOf, RoundsMastersToTheParametersThatTheUpdateGave) {
    const std::array samples = {random_samples(1), edge_samples(3, 1), edge_samples(10, 1)};
    for (std::size_t turn = 0; turn < samples.size(); ++turn) {
        Tile tile(format(), samples[turn], Dtype::bf16, dtype(turn));
        const std::vector<std::byte> before = tile.rounded(engine(), kTileElems);
        tile.update(engine(), scalars(), 0, kTileElems);
        EXPECT_EQ(tile.rounded(engine(), kTileElems), tile.parameters());
        EXPECT_NE(before, tile.parameters());
        // The engine also stops at the given count.
        const std::size_t bytes = 1000 * size_bytes(dtype(turn));
        const std::vector<std::byte> part = tile.rounded(engine(), 1000);
        EXPECT_TRUE(std::equal(part.begin(), part.begin() + static_cast<std::ptrdiff_t>(bytes),
                               tile.parameters().begin()));
        EXPECT_EQ(part[bytes], std::byte{0xEE});
    }
}

TEST_P(EngineOf, KeepsPaddingZero) {
    Tile tile(format(), Samples(), Dtype::bf16, Dtype::bf16);
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

INSTANTIATE_TEST_SUITE_P(ThisCpu, FastEngineOf,
                         testing::Combine(testing::ValuesIn(fast_engines()),
                                          testing::ValuesIn(kOptimizers),
                                          testing::ValuesIn(kStateFormats)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(ThisCpu, EngineOf,
                         testing::Combine(testing::ValuesIn(engines()),
                                          testing::ValuesIn(kOptimizers),
                                          testing::ValuesIn(kStateFormats)),
                         case_name);

TEST(EngineTest, PrefersTheLastOfTheList) {
    EXPECT_STREQ(best_engine().name, engines().back().name);
}

TEST(EngineTest, IncrementsEveryWordAndNoOther) {
    for (const UpdateEngine& engine : engines()) {
        std::vector<std::uint64_t> words(103, 41);
        engine.increment(words.data() + 1, 101);
        EXPECT_EQ(std::ranges::count(words, 42U), 101) << engine.name;
        EXPECT_EQ(words.front(), 41U);
        EXPECT_EQ(words.back(), 41U);
    }
}

}  // namespace
}  // namespace nearstep::csd
