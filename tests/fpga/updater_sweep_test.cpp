// Random settings and bytes: any combination of settings, any stored bits, every tie.
#include "csd/optimizer.hpp"
#include "csd/state_format.hpp"
#include "fpga/same_bits.hpp"
#include "fpga/samples.hpp"
#include "fpga/subgroup.hpp"
#include "support/test.hpp"
#include "support/update_values.hpp"

namespace nearstep::fpga {
namespace {

constexpr std::array kBlockCodecs = {"q8", "q4"};

// Independent random choices for one seed, in sequence.
class Choices {
public:
    explicit Choices(std::uint64_t seed) : seed_(seed) {}

    std::uint64_t below(std::uint64_t limit) { return random_bits(seed_, 0, next_++) % limit; }
    float between(double low, double high) {
        return static_cast<float>(low + (high - low) * random_uniform(seed_, 1, next_++));
    }
    template <typename Array>
    auto one_of(const Array& array) {
        return array[below(array.size())];
    }

private:
    std::uint64_t seed_;
    std::uint64_t next_ = 0;
};

codec::CodecSettings random_codec(Choices& choices) {
    constexpr std::array kDtypes = {Dtype::fp32, Dtype::bf16, Dtype::fp16};
    constexpr std::array kRoundings = {Rounding::nearest, Rounding::stochastic};
    switch (choices.below(3)) {
        case 0:
            return {.name = "dense", .dtype = choices.one_of(kDtypes)};
        case 1: {
            // Small counts are as likely as large ones.
            const double kept = std::floor(std::exp2(choices.between(0, 16)));
            return {.name = "topk",
                    .keep = kept / kTile,
                    .dtype = choices.below(2) == 0 ? Dtype::bf16 : Dtype::fp16};
        }
        default:
            return {.name = choices.one_of(kBlockCodecs), .rounding = choices.one_of(kRoundings)};
    }
}

SubgroupSettings random_settings(Choices& choices) {
    SubgroupSettings settings{.format = choices.one_of(kStateFormats),
                              .codec = random_codec(choices)};
    settings.tiles = 1 + choices.below(3);
    settings.sources = 1 + choices.below(4);
    settings.first_tile = choices.below(1ULL << 40U);
    settings.delivery =
        choices.below(2) == 0 ? ParameterDelivery::parameters : ParameterDelivery::deltas;
    settings.parameter_dtype = choices.below(2) == 0 ? Dtype::bf16 : Dtype::fp16;
    return settings;
}

UpdateScalars random_scalars(Choices& choices) {
    UpdateScalars scalars;
    scalars.optimizer = static_cast<Optimizer>(choices.below(5));
    scalars.gradient_scale = choices.between(0.01, 3);
    scalars.beta1 = choices.between(0, 1);
    scalars.one_minus_beta1 = 1 - scalars.beta1;
    scalars.beta2 = choices.between(0.5, 1);
    scalars.one_minus_beta2 = 1 - scalars.beta2;
    scalars.epsilon = choices.between(1e-9, 1e-6);
    scalars.decay_factor = choices.between(0.9, 1);
    scalars.gradient_decay = choices.between(0, 0.1);
    scalars.step_size = choices.between(1e-6, 1e-3);
    scalars.root_scale = choices.between(1, 4);
    scalars.random_key = choices.below(~0ULL);
    return scalars;
}

class UpdaterAtRandom : public testing::TestWithParam<int> {};

TEST_P(UpdaterAtRandom, GivesTheBitsOfTheEngines) {
    Choices choices(static_cast<std::uint64_t>(GetParam()));
    const SubgroupSettings settings = random_settings(choices);
    const UpdateScalars scalars = random_scalars(choices);
    SCOPED_TRACE(std::string(csd::name_of(settings.format)) + " " +
                 csd::name_of(scalars.optimizer) + " " + settings.codec.name + " of " +
                 std::to_string(settings.sources));
    Subgroup start(settings);
    start.set_state(random_samples(choices.below(~0ULL), start.elems()).state());
    for (std::size_t source = 0; source < settings.sources; ++source) {
        start.set_gradient(source, random_samples(choices.below(~0ULL), start.elems()).gradient);
    }
    expect_bits_of_engines(start, scalars, 2);
}

INSTANTIATE_TEST_SUITE_P(Seeds, UpdaterAtRandom, testing::Range(0, 40));

// --- Bytes that no engine and no encoder wrote ---------------------------------------------------

void fill_random(std::span<std::byte> bytes, std::uint64_t seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(random_bits(seed, 0, i) % 256);
    }
}

// Includes infinities and NaN. All NaNs count as equal.
TEST(UpdaterAnyBits, TakesAnyStateAndAnyCodes) {
    std::uint64_t seed = 1;
    for (const StateFormat format : kStateFormats) {
        for (const std::string name : {"dense", "q8", "q4"}) {
            SCOPED_TRACE(std::string(csd::name_of(format)) + " " + name);
            Subgroup start({.format = format, .codec = {.name = name}, .tiles = 2, .sources = 2});
            fill_random(start.payload(), ++seed);
            for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::lion}) {
                Subgroup seen = start;
                seen.run_kernel(sane_scalars(optimizer));
                for (const csd::Engine& engine : compared_engines()) {
                    Subgroup expected = start;
                    expected.run_engine(engine, sane_scalars(optimizer));
                    const auto left = expected.widened();
                    const auto right = seen.widened();
                    for (std::size_t array = 0; array < left.size(); ++array) {
                        EXPECT_EQ(differences(left[array], right[array]), 0U)
                            << engine.name << " " << csd::name_of(optimizer) << " " << array;
                    }
                    EXPECT_EQ(differences(widened_parameters(expected), widened_parameters(seen)),
                              0U);
                }
            }
        }
    }
}

// --- Ties ----------------------------------------------------------------------------------------

// An fp32 value halfway between two neighbours in the 16-bit format.
float tie_of(Dtype dtype, std::uint64_t seed, std::size_t i) {
    const auto random = static_cast<std::uint32_t>(random_bits(seed, 0, i));
    const std::uint32_t sign = random & 0x80000000U;
    if (dtype == Dtype::bf16) {
        const std::uint32_t exponent = 1 + (random >> 8U) % 254;
        return float_of(sign | (exponent << 23U) | ((random & 0x7FU) << 16U) | 0x8000U);
    }
    const std::uint32_t exponent = 113 + (random >> 16U) % 30;  // from 2^-14 to 2^15
    return float_of(sign | (exponent << 23U) | ((random & 0x3FFU) << 13U) | 0x1000U);
}

TEST(UpdaterTies, OfParametersGoToTheEvenNeighbour) {
    UpdateScalars still;
    still.optimizer = Optimizer::sgd;
    still.step_size = 0;
    for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16, StateFormat::q8}) {
        for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
            Subgroup start({.format = format, .tiles = 2, .parameter_dtype = dtype});
            Samples samples = random_samples(1, start.elems());
            for (std::size_t i = 0; i < start.elems(); ++i) {
                samples.master[i] = tie_of(dtype, 3, i);
            }
            start.set_state(samples.state());
            start.set_gradient(0, samples.gradient);
            expect_bits_of_engines(start, still);
            start.run_kernel(still);
            std::vector<std::uint16_t> parameters(start.elems());
            std::memcpy(parameters.data(), start.parameters().data(), start.elems() * 2);
            EXPECT_TRUE(std::ranges::all_of(parameters, [](auto bits) { return bits % 2 == 0; }));
        }
    }
}

// A block's largest value is exact; all others lie halfway between two codes.
TEST(UpdaterTies, OfCodesGoToTheEvenCode) {
    UpdateScalars first;  // for sgd from moment 0 the moment is the gradient
    first.optimizer = Optimizer::sgd;
    first.step_size = 1e-3F;
    UpdateScalars second = first;  // for adagrad it is the gradient's square
    second.optimizer = Optimizer::adagrad;
    for (const StateFormat format : {StateFormat::q8, StateFormat::compact}) {
        for (const UpdateScalars& scalars : {first, second}) {
            const bool is_first = scalars.optimizer == Optimizer::sgd;
            const std::uint32_t largest = is_first ? 127 : 255;
            Subgroup start(
                {.format = format, .codec = {.name = "dense", .dtype = Dtype::fp32}, .tiles = 2});
            Samples samples = random_samples(2, start.elems());
            std::ranges::fill(samples.moment1, 0.0F);
            std::ranges::fill(samples.moment2, 0.0F);
            for (std::size_t i = 0; i < start.elems(); ++i) {
                const auto whole = static_cast<float>(random_bits(4, 0, i) % largest);
                const float sign = random_bits(4, 1, i) % 2 == 0 ? 1.0F : -1.0F;
                samples.gradient[i] =
                    i % kBlockElems == 7 ? static_cast<float>(largest) : sign * (whole + 0.5F);
            }
            start.set_state(samples.state());
            start.set_gradient(0, samples.gradient);
            expect_bits_of_engines(start, scalars);
            start.run_kernel(scalars);
            for (std::size_t tile = 0; tile < 2; ++tile) {
                const csd::StatePointers at = csd::state_of_tile(format, start.payload(), 2, tile);
                const auto* codes =
                    static_cast<const std::uint8_t*>(is_first ? at.moment1 : at.moment2);
                for (std::size_t i = 0; i < kTile; ++i) {
                    // A moment2 above zero never gets code 0.
                    const bool is_exact = i % kBlockElems == 7 ||
                                          (!is_first && codes[i] == 1 &&
                                           std::abs(samples.gradient[tile * kTile + i]) == 0.5F);
                    EXPECT_EQ(codes[i] % 2, is_exact ? 1 : 0) << i;
                }
            }
        }
    }
}

}  // namespace
}  // namespace nearstep::fpga
