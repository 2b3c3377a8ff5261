#include "csd/engine.hpp"

#include "base/random.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

namespace nearstep::csd {

std::ostream& operator<<(std::ostream& out, const Engine& engine) { return out << engine.name; }

namespace {

using fpga::UpdateScalars;

struct Arrays {
    std::vector<float> gradient;
    std::vector<float> master;
    std::vector<float> moment1;
    std::vector<float> moment2;
};

UpdateScalars sane_scalars() {
    UpdateScalars scalars;
    scalars.gradient_scale = 0.37F;
    scalars.decay_factor = 1 - 1e-4F;
    scalars.step_size = 1.9e-3F;
    scalars.root_scale = 1.4F;
    return scalars;
}

Arrays random_arrays(std::size_t count, std::uint64_t seed) {
    Arrays arrays;
    for (std::size_t i = 0; i < count; ++i) {
        arrays.gradient.push_back(static_cast<float>(random_normal(seed, 0, i) * 1e-2));
        arrays.master.push_back(static_cast<float>(random_normal(seed, 1, i) * 0.3));
        arrays.moment1.push_back(static_cast<float>(random_normal(seed, 2, i) * 1e-3));
        arrays.moment2.push_back(static_cast<float>(random_uniform(seed, 3, i) * 1e-4));
    }
    return arrays;
}

// Every combination of values at the edges of fp32, in all four arrays.
Arrays edge_arrays() {
    using Limits = std::numeric_limits<float>;
    const std::array<float, 14> edges = {0.0F,
                                         -0.0F,
                                         1.0F,
                                         -1.0F,
                                         Limits::denorm_min(),
                                         -Limits::denorm_min(),
                                         1e-40F,
                                         Limits::min(),
                                         Limits::max(),
                                         -Limits::max(),
                                         Limits::infinity(),
                                         -Limits::infinity(),
                                         Limits::quiet_NaN(),
                                         3e-20F};
    Arrays arrays;
    for (const float gradient : edges) {
        for (const float master : edges) {
            for (const float moment1 : edges) {
                for (const float moment2 : edges) {
                    arrays.gradient.push_back(gradient);
                    arrays.master.push_back(master);
                    arrays.moment1.push_back(moment1);
                    arrays.moment2.push_back(moment2);
                }
            }
        }
    }
    return arrays;
}

void update(const Engine& engine, const UpdateScalars& scalars, Arrays& arrays, std::size_t begin,
            std::size_t count) {
    engine.update(scalars, arrays.gradient.data() + begin, arrays.master.data() + begin,
                  arrays.moment1.data() + begin, arrays.moment2.data() + begin, count);
}

// Elements whose bits differ; NaNs are equal whatever their payload.
std::size_t differences(const std::vector<float>& left, const std::vector<float>& right) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
        const bool are_nan = std::isnan(left[i]) && std::isnan(right[i]);
        count += (bits_of(left[i]) != bits_of(right[i]) && !are_nan) ? 1U : 0U;
    }
    return count;
}

void expect_equal(const Arrays& left, const Arrays& right) {
    EXPECT_EQ(differences(left.master, right.master), 0U);
    EXPECT_EQ(differences(left.moment1, right.moment1), 0U);
    EXPECT_EQ(differences(left.moment2, right.moment2), 0U);
}

class EngineOf : public testing::TestWithParam<Engine> {
protected:
    static const Engine& scalar() {
        static const Engine first = engines().front();
        return first;
    }
};

TEST_P(EngineOf, GivesTheBitsOfTheScalarEngine) {
    const Arrays initial = random_arrays(10'007, 1);
    Arrays expected = initial;
    Arrays seen = initial;
    for (int step = 0; step < 5; ++step) {
        update(scalar(), sane_scalars(), expected, 0, expected.master.size());
        update(GetParam(), sane_scalars(), seen, 0, seen.master.size());
    }
    EXPECT_GT(differences(initial.master, seen.master), 9000U);
    expect_equal(expected, seen);
}

TEST_P(EngineOf, LeavesNeighboursOfAnyRunAlone) {
    const Arrays initial = random_arrays(200, 2);
    for (std::size_t begin = 0; begin < 20; ++begin) {
        for (std::size_t count = 0; count < 80; ++count) {
            Arrays expected = initial;
            Arrays seen = initial;
            for (std::size_t i = begin; i < begin + count; ++i) {
                update(scalar(), sane_scalars(), expected, i, 1);
            }
            update(GetParam(), sane_scalars(), seen, begin, count);
            expect_equal(expected, seen);
        }
    }
}

TEST_P(EngineOf, AgreesOnDenormalsInfinitiesAndNan) {
    UpdateScalars no_epsilon = sane_scalars();
    no_epsilon.epsilon = 0;
    for (const UpdateScalars& scalars : {sane_scalars(), no_epsilon}) {
        Arrays expected = edge_arrays();
        Arrays seen = edge_arrays();
        update(scalar(), scalars, expected, 0, expected.master.size());
        update(GetParam(), scalars, seen, 0, seen.master.size());
        expect_equal(expected, seen);
    }
}

TEST_P(EngineOf, KeepsPaddingZero) {
    const std::vector<float> zeros(65, 0.0F);
    Arrays arrays = {zeros, zeros, zeros, zeros};
    update(GetParam(), sane_scalars(), arrays, 0, zeros.size());
    expect_equal(arrays, {zeros, zeros, zeros, zeros});
}

// One unit in the last place of values about as large as `value`.
double ulp(double value) {
    const auto magnitude = static_cast<float>(std::abs(value));
    return static_cast<double>(std::nextafter(magnitude, std::numeric_limits<float>::infinity())) -
           static_cast<double>(magnitude);
}

TEST_P(EngineOf, StaysWithinTwoUlpOfAdamwInDoublePrecision) {
    Arrays arrays = random_arrays(4096, 3);
    for (std::size_t i = 0; i < arrays.master.size(); ++i) {
        // Far from zero, so that the last place is that of the master, not of what is subtracted.
        arrays.master[i] = std::copysign(0.1F + std::abs(arrays.master[i]), arrays.master[i]);
        arrays.moment1[i] = 0;
        arrays.moment2[i] = 0;
    }
    constexpr double kRate = 1e-3;
    constexpr double kDecay = 0.1;
    constexpr double kEpsilon = 1e-8;
    for (int step = 1; step <= 50; ++step) {
        UpdateScalars scalars;
        scalars.decay_factor = static_cast<float>(1 - kRate * kDecay);
        scalars.step_size = static_cast<float>(kRate / (1 - std::pow(0.9, step)));
        scalars.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(0.95, step)));
        for (std::size_t i = 0; i < arrays.gradient.size(); ++i) {
            arrays.gradient[i] =
                static_cast<float>(random_normal(4, static_cast<std::uint64_t>(step), i) * 1e-2);
        }
        const Arrays before = arrays;
        update(GetParam(), scalars, arrays, 0, arrays.master.size());
        for (std::size_t i = 0; i < arrays.master.size(); ++i) {
            const double g = before.gradient[i];
            const double moment1 = 0.9 * before.moment1[i] + 0.1 * g;
            const double moment2 = 0.95 * before.moment2[i] + 0.05 * g * g;
            const double corrected1 = moment1 / (1 - std::pow(0.9, step));
            const double corrected2 = moment2 / (1 - std::pow(0.95, step));
            const double move = kRate * corrected1 / (std::sqrt(corrected2) + kEpsilon);
            const double master = before.master[i] * (1 - kRate * kDecay) - move;
            // Where its terms cancel, the last place is that of the larger one.
            const double largest1 = std::max(std::abs(0.9 * before.moment1[i]), std::abs(0.1 * g));
            ASSERT_NEAR(arrays.moment1[i], moment1, 2 * ulp(largest1))
                << "step " << step << " element " << i;
            ASSERT_NEAR(arrays.moment2[i], moment2, 2 * ulp(moment2))
                << "step " << step << " element " << i;
            ASSERT_NEAR(arrays.master[i], master, 2 * ulp(master))
                << "step " << step << " element " << i;
        }
    }
}

TEST_P(EngineOf, ConvertsAsTheFormatsDefine) {
    std::vector<float> values = edge_arrays().moment2;
    for (std::uint64_t i = 0; i < 100'003; ++i) {
        values.push_back(float_of(static_cast<std::uint32_t>(random_bits(5, 0, i))));
    }
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
        std::vector<std::byte> expected(values.size() * size_bytes(dtype));
        std::vector<std::byte> seen(expected.size());
        convert_from_fp32(values.data(), dtype, expected.data(), values.size());
        GetParam().convert(values.data(), dtype, seen.data(), values.size());
        EXPECT_TRUE(expected == seen) << name_of(dtype);
    }
}

INSTANTIATE_TEST_SUITE_P(ThisCpu, EngineOf, testing::ValuesIn(engines()),
                         [](const testing::TestParamInfo<Engine>& engine) {
                             return std::string(engine.param.name);
                         });

TEST(EngineTest, PrefersTheLastOfTheList) {
    EXPECT_STREQ(best_engine().name, engines().back().name);
}

}  // namespace
}  // namespace nearstep::csd
