// Any stored bits, and every tie.
#include "csd/optimizer.hpp"
#include "csd/state_format.hpp"
#include "fpga/same_bits.hpp"
#include "fpga/sample_subgroups.hpp"
#include "fpga/subgroup.hpp"
#include "support/test.hpp"
#include "support/update_values.hpp"

namespace nearstep::fpga {
namespace {

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
                for (const csd::UpdateEngine& engine : compared_engines()) {
                    expect_values_of_engine(start, engine, sane_scalars(optimizer));
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
