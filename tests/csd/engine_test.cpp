#include "csd/engine.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "csd/optimizer.hpp"
#include "csd/state_format.hpp"
#include "support/update_values.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace nearstep::csd {

std::ostream& operator<<(std::ostream& out, const Engine& engine) { return out << engine.name; }

namespace {

using arith::kEdges;
using arith::kEdgeTiles;
using arith::sane_scalars;
using arith::UpdateScalars;
using shard::kTileElems;

constexpr std::array kOptimizers = {Optimizer::adamw, Optimizer::adam, Optimizer::sgd,
                                    Optimizer::adagrad, Optimizer::lion};

// fp32 state and gradients of one tile.
struct Arrays {
    std::vector<float> gradient = std::vector<float>(kTileElems);
    std::vector<float> master = gradient;
    std::vector<float> moment1 = gradient;
    std::vector<float> moment2 = gradient;

    StateArrays state() { return {master, moment1, moment2}; }
};

Arrays random_arrays(std::uint64_t seed) {
    Arrays arrays;
    for (std::size_t i = 0; i < kTileElems; ++i) {
        arrays.gradient[i] = static_cast<float>(random_normal(seed, 0, i) * 1e-2);
        arrays.master[i] = static_cast<float>(random_normal(seed, 1, i) * 0.3);
        arrays.moment1[i] = static_cast<float>(random_normal(seed, 2, i) * 1e-3);
        arrays.moment2[i] = static_cast<float>(random_uniform(seed, 3, i) * 1e-4);
    }
    return arrays;
}

// Every combination of values at the edges of fp32: a block for each gradient and moments, so that
// a NaN does not spoil the moments of others, and every master in it.
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

// One tile as it is stored, its gradient and its new parameters.
class Tile {
public:
    Tile(StateFormat format, Arrays arrays, Dtype gradient_dtype, Dtype parameter_dtype)
        : format_(format),
          gradient_dtype_(gradient_dtype),
          parameter_dtype_(parameter_dtype),
          words_(state_bytes(format, 1) / sizeof(float)),
          gradient_(kTileElems * size_bytes(gradient_dtype)),
          parameters_(kTileElems * size_bytes(parameter_dtype)) {
        narrow(format, arrays.state(), payload());
        convert_from_fp32(arrays.gradient.data(), gradient_dtype, gradient_.data(), kTileElems);
    }

    void update(const Engine& engine, const UpdateScalars& scalars, std::size_t begin,
                std::size_t count) {
        engine.update(scalars, run_of(scalars, begin, count));
    }

    // What the engine makes of the masters as they are.
    std::vector<std::byte> rounded(const Engine& engine, std::size_t count) {
        std::vector<std::byte> parameters(parameters_.size(), std::byte{0xEE});
        UpdateRun run = run_of({}, 0, count);
        run.parameters = parameters.data();
        engine.round(run);
        return parameters;
    }

    UpdateRun run_of(const UpdateScalars& scalars, std::size_t begin, std::size_t count) {
        const StatePointers all = state_of_tile(format_, payload(), 1, 0);
        const std::size_t halves = format_ == StateFormat::compact ? 2 : 4;
        const std::size_t moment = format_ == StateFormat::fp32   ? 4
                                   : format_ == StateFormat::bf16 ? 2
                                                                  : 1;
        UpdateRun run;
        run.format = format_;
        run.state.master = static_cast<std::byte*>(all.master) + begin * halves;
        run.state.moment1 = static_cast<std::byte*>(all.moment1) + begin * moment;
        run.state.moment2 = static_cast<std::byte*>(all.moment2) + begin * moment;
        if (all.scale1 != nullptr) {
            run.state.scale1 = all.scale1 + begin / arith::kBlockElems;
            run.state.scale2 = all.scale2 + begin / arith::kBlockElems;
        }
        run.gradient = &gradient_[begin * size_bytes(gradient_dtype_)];
        run.gradient_dtype = gradient_dtype_;
        run.parameters = &parameters_[begin * size_bytes(parameter_dtype_)];
        run.parameter_dtype = parameter_dtype_;
        run.key = arith::tile_key(scalars.random_key, 5);
        run.first = static_cast<std::uint32_t>(begin);
        run.count = count;
        return run;
    }

    Arrays widened() {
        Arrays arrays;
        widen(format_, payload(), arrays.state());
        return arrays;
    }
    std::span<std::byte> payload() { return std::as_writable_bytes(std::span(words_)); }
    const std::vector<std::byte>& parameters() const { return parameters_; }
    std::vector<float> widened_parameters() const {
        std::vector<float> values(kTileElems);
        convert_to_fp32(parameter_dtype_, parameters_.data(), values.data(), kTileElems);
        return values;
    }

private:
    StateFormat format_;
    Dtype gradient_dtype_;
    Dtype parameter_dtype_;
    std::vector<float> words_;
    std::vector<std::byte> gradient_;
    std::vector<std::byte> parameters_;
};

// Elements whose bits differ; NaNs are equal whatever their payload.
std::size_t differences(const std::vector<float>& left, const std::vector<float>& right) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
        const bool are_nan = std::isnan(left[i]) && std::isnan(right[i]);
        count += (bits_of(left[i]) != bits_of(right[i]) && !are_nan) ? 1U : 0U;
    }
    return count;
}

void expect_equal(Tile& left, Tile& right) {
    const Arrays one = left.widened();
    const Arrays other = right.widened();
    EXPECT_EQ(differences(one.master, other.master), 0U);
    EXPECT_EQ(differences(one.moment1, other.moment1), 0U);
    EXPECT_EQ(differences(one.moment2, other.moment2), 0U);
    EXPECT_EQ(differences(left.widened_parameters(), right.widened_parameters()), 0U);
}

bool has_same_bytes(Tile& left, Tile& right) {
    return std::ranges::equal(left.payload(), right.payload()) &&
           left.parameters() == right.parameters();
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
            // A bf16 master mostly stays where it is for a few steps.
            EXPECT_GT(differences(before, seen.widened().master), kTileElems / 100);
            EXPECT_TRUE(has_same_bytes(expected, seen))
                << name_of(gradient) << " " << name_of(parameters);
        }
    }
}

TEST_P(EngineOf, LeavesNeighboursOfAnyRunAlone) {
    Tile expected(format(), random_arrays(2), Dtype::bf16, Dtype::bf16);
    Tile seen = expected;
    for (std::size_t count = 0; count < 80; ++count) {
        const std::size_t begin = count * 3 * arith::kBlockElems;
        const std::size_t run = count < 40 ? count : count * 7;  // within and beyond a block
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
            // And no further than it is told.
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

// One unit in the last place of values about as large as `value`.
double ulp(double value) {
    const auto magnitude = static_cast<float>(std::abs(value));
    return static_cast<double>(std::nextafter(magnitude, std::numeric_limits<float>::infinity())) -
           static_cast<double>(magnitude);
}

// State of one parameter in double precision, and the largest term that each sum had.
struct Reference {
    double master = 0;
    double moment1 = 0;
    double moment2 = 0;
    // The largest terms that were added for the first moment and for the gradient with its decay.
    double largest1 = 0;
    double largest_gradient = 0;
};

constexpr double kRate = 1e-3;
constexpr double kDecay = 0.1;
constexpr double kEpsilon = 1e-8;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.95;

// The published update number `step`, as its paper writes it.
Reference published(Optimizer optimizer, const Reference& old, double gradient, int step) {
    Reference next = old;
    const bool is_l2 = optimizer == Optimizer::adam || optimizer == Optimizer::sgd ||
                       optimizer == Optimizer::adagrad;
    const double g = gradient + (is_l2 ? kDecay * old.master : 0);
    next.largest_gradient = std::max(std::abs(gradient), is_l2 ? std::abs(kDecay * old.master) : 0);
    const double beta = optimizer == Optimizer::lion ? kBeta2 : kBeta1;
    const double fresh = optimizer == Optimizer::sgd ? g : (1 - beta) * g;
    if (optimizer != Optimizer::adagrad) {
        next.moment1 = beta * old.moment1 + fresh;
        next.largest1 = std::max(std::abs(beta * old.moment1), std::abs(fresh));
    }
    const double decayed = old.master * (1 - kRate * kDecay);
    switch (optimizer) {
        case Optimizer::adamw:
        case Optimizer::adam: {
            next.moment2 = kBeta2 * old.moment2 + (1 - kBeta2) * g * g;
            const double mean = next.moment1 / (1 - std::pow(kBeta1, step));
            const double square = next.moment2 / (1 - std::pow(kBeta2, step));
            next.master =
                (is_l2 ? old.master : decayed) - kRate * mean / (std::sqrt(square) + kEpsilon);
            break;
        }
        case Optimizer::sgd:
            next.master = old.master - kRate * next.moment1;
            break;
        case Optimizer::adagrad:
            next.moment2 = old.moment2 + g * g;
            next.master = old.master - kRate * g / (std::sqrt(next.moment2) + kEpsilon);
            break;
        case Optimizer::lion: {
            const double direction = kBeta1 * old.moment1 + (1 - kBeta1) * g;
            next.master = decayed - kRate * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
            break;
        }
    }
    return next;
}

UpdateScalars scalars_of_step(Optimizer optimizer, int step) {
    const bool is_adam = optimizer == Optimizer::adamw || optimizer == Optimizer::adam;
    UpdateScalars scalars;
    scalars.optimizer = optimizer;
    scalars.decay_factor = static_cast<float>(1 - kRate * kDecay);
    scalars.gradient_decay = static_cast<float>(kDecay);
    scalars.step_size = static_cast<float>(is_adam ? kRate / (1 - std::pow(kBeta1, step)) : kRate);
    scalars.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(kBeta2, step)));
    return scalars;
}

class OptimizerOf : public testing::TestWithParam<Optimizer> {};

TEST_P(OptimizerOf, StaysWithinAFewUlpOfItsPaperInDoublePrecision) {
    Arrays arrays = random_arrays(3);
    for (std::size_t i = 0; i < kTileElems; ++i) {
        // Far from zero, so that the last place is that of the master, not of what is subtracted.
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
        tile.update(best_engine(), scalars_of_step(GetParam(), step), 0, kTileElems);
        arrays = tile.widened();
        for (std::size_t i = 0; i < kTileElems; ++i) {
            const Reference old = {before.master[i], before.moment1[i], before.moment2[i], 0, 0};
            const Reference next = published(GetParam(), old, before.gradient[i], step);
            // Where its terms cancel, the last place is that of the larger one.
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

TEST(OptimizerTest, IsReadFromItsName) {
    for (const Optimizer optimizer : kOptimizers) {
        EXPECT_EQ(parse_optimizer(name_of(optimizer)), optimizer);
    }
    EXPECT_THROW(parse_optimizer("adamW"), ConfigError);
}

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
