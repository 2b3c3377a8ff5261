// Tests the formats of state: sizes, layout of a tile, and what rounding loses.
#include "csd/state_format.hpp"

#include "support/test.hpp"
#include "support/update_values.hpp"

namespace nearstep::csd {
namespace {

using arith::kBlockElems;
using shard::kTileElems;

constexpr std::size_t kTiles = 2;
constexpr std::size_t kElems = kTiles * kTileElems;

struct Values {
    std::vector<float> master = std::vector<float>(kElems);
    std::vector<float> moment1 = master;
    std::vector<float> moment2 = master;
    StateArrays arrays() { return {master, moment1, moment2}; }
};

class Payload {
public:
    explicit Payload(StateFormat of) : words_(state_bytes(of, kTiles) / sizeof(float)) {}
    std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words_)); }

private:
    std::vector<float> words_;
};

// Stores these values in the payload and returns them as they are read back.
Values stored(StateFormat format, Values& state, Payload& payload) {
    narrow(format, state.arrays(), payload.bytes());
    Values seen;
    widen(format, payload.bytes(), seen.arrays());
    return seen;
}
Values stored(StateFormat format, Values& state) {
    Payload payload(format);
    return stored(format, state, payload);
}

float random_float(std::uint64_t stream, std::uint64_t index) {
    return float_of(static_cast<std::uint32_t>(random_bits(11, stream, index)));
}

// Finite values of every magnitude, including subnormals. Second moments are not negative.
Values state_of_any_magnitude() {
    Values state;
    for (std::size_t i = 0; i < kElems; ++i) {
        const auto finite = [i](std::uint64_t stream) {
            const float value = random_float(stream, i);
            return std::isfinite(value) ? value : 1e-42F;
        };
        // Values within a block lie within six powers of two; blocks differ freely.
        const int exponent = static_cast<int>(random_bits(12, 0, i / kBlockElems) % 270) - 145;
        const auto near = [i, exponent](std::uint64_t stream) {
            return static_cast<float>(
                std::ldexp(random_uniform(13, stream, i) - 0.5, std::min(exponent, 127)));
        };
        state.master[i] = finite(0);
        state.moment1[i] = i % kBlockElems < 8 ? near(1) * 0.01F : near(1);
        state.moment2[i] = std::abs(near(2));
    }
    return state;
}

TEST(StateBytes, AreTwelveEightSixAndFourPerParameter) {
    EXPECT_EQ(state_bytes(StateFormat::fp32, 16), 16 * kTileElems * 12);
    EXPECT_EQ(state_bytes(StateFormat::bf16, 16), 16 * kTileElems * 8);
    EXPECT_EQ(state_bytes(StateFormat::q8, 16), 16 * (kTileElems * 6 + 2 * 256 * 4));
    EXPECT_EQ(state_bytes(StateFormat::compact, 16), 16 * (kTileElems * 4 + 2 * 256 * 4));
    for (const StateFormat format : kStateFormats) {
        EXPECT_EQ(state_bytes(format, 3) % 4096, 0U);
        EXPECT_LT(state_bytes(format, 1) * 16, state_bytes(format, 16) + 16 * 4096);
    }
}

class FormatOf : public testing::TestWithParam<StateFormat> {};

TEST_P(FormatOf, NarrowsWhatItWidenedToTheSameBytes) {
    Values state = state_of_any_magnitude();
    Payload first(GetParam());
    Payload second(GetParam());
    Values widened = stored(GetParam(), state, first);
    narrow(GetParam(), widened.arrays(), second.bytes());
    EXPECT_TRUE(std::ranges::equal(first.bytes(), second.bytes()));
    EXPECT_TRUE(std::ranges::any_of(first.bytes(), [](std::byte b) { return b != std::byte{0}; }));
}

TEST_P(FormatOf, PutsTheArraysOfATileWhereNoOtherHasItsOwn) {
    Values state;
    for (std::size_t i = 0; i < kElems; ++i) {
        const float tile = i < kTileElems ? 1.0F : 2.0F;
        state.master[i] = tile;
        state.moment1[i] = 4 * tile;
        state.moment2[i] = 16 * tile * tile;
    }
    const Values seen = stored(GetParam(), state);
    EXPECT_EQ(seen.master, state.master);
    EXPECT_EQ(seen.moment1, state.moment1);
    EXPECT_EQ(seen.moment2, state.moment2);
}

// Bytes of no value that an update stores, such as NaN, too.
TEST_P(FormatOf, CopiesStateOfItsOwnFormatByteForByte) {
    Payload from(GetParam());
    Payload to(GetParam());
    for (std::size_t i = 0; i < from.bytes().size(); ++i) {
        from.bytes()[i] = static_cast<std::byte>(random_bits(14, 0, i));
    }
    clear_after_arrays(GetParam(), from.bytes(), kTiles);
    for (std::size_t tile = 0; tile < kTiles; ++tile) {
        convert_state(GetParam(), state_of_tile(GetParam(), from.bytes(), kTiles, tile), kTileElems,
                      GetParam(), state_of_tile(GetParam(), to.bytes(), kTiles, tile));
    }
    EXPECT_TRUE(std::ranges::equal(from.bytes(), to.bytes()));
}

TEST_P(FormatOf, ConvertsAsWideningAndNarrowingDo) {
    Values state = state_of_any_magnitude();
    Payload from(GetParam());
    const Values wide = stored(GetParam(), state, from);
    for (const StateFormat other : kStateFormats) {
        Payload converted(other);
        Payload expected(other);
        for (std::size_t tile = 0; tile < kTiles; ++tile) {
            convert_state(GetParam(), state_of_tile(GetParam(), from.bytes(), kTiles, tile),
                          kTileElems, other, state_of_tile(other, converted.bytes(), kTiles, tile));
        }
        Values copy = wide;
        narrow(other, copy.arrays(), expected.bytes());
        EXPECT_TRUE(std::ranges::equal(converted.bytes(), expected.bytes())) << name_of(other);
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, FormatOf, testing::ValuesIn(kStateFormats));

TEST(EightBitMoments, SurviveWideningWithEveryCodeAndScale) {
    for (const StateFormat format : {StateFormat::q8, StateFormat::compact}) {
        Payload first(format);
        for (std::size_t tile = 0; tile < kTiles; ++tile) {
            const StatePointers state = state_of_tile(format, first.bytes(), kTiles, tile);
            for (std::size_t i = 0; i < kTileElems; ++i) {
                // Every block has all codes. The largest is always present, as after an update.
                static_cast<std::int8_t*>(state.moment1)[i] =
                    static_cast<std::int8_t>(static_cast<int>(i % 255) - 127);
                static_cast<std::uint8_t*>(state.moment2)[i] =
                    static_cast<std::uint8_t>(i % kBlockElems);
            }
            for (std::size_t block = 0; block < kTileElems / kBlockElems; ++block) {
                const std::uint64_t number = tile * 256 + block;
                const auto mantissa = static_cast<float>(1 + random_uniform(14, 0, number));
                state.scale1[block] =
                    std::ldexp(mantissa, static_cast<int>(random_bits(14, 1, number) % 228) - 100);
                state.scale2[block] =
                    std::ldexp(mantissa, static_cast<int>(random_bits(14, 2, number) % 119) - 55);
            }
            state.scale1[0] = arith::kMoment1Floor;
            state.scale2[0] = arith::kRoot2Floor;
            state.scale1[1] = std::numeric_limits<float>::max();
            state.scale2[1] = std::sqrt(std::numeric_limits<float>::max());
        }
        Values wide;
        widen(format, first.bytes(), wide.arrays());
        Payload second(format);
        narrow(format, wide.arrays(), second.bytes());
        EXPECT_TRUE(std::ranges::equal(first.bytes(), second.bytes())) << name_of(format);
    }
}

TEST(EightBitMoments, AreWithinHalfAStepAndNeverLoseASecondMoment) {
    Values state = state_of_any_magnitude();
    Payload payload(StateFormat::q8);
    const Values seen = stored(StateFormat::q8, state, payload);
    constexpr double kRounding = 1 + 1e-4;  // rounding of the code in fp32
    for (std::size_t i = 0; i < kElems; ++i) {
        const StatePointers tile =
            state_of_tile(StateFormat::q8, payload.bytes(), kTiles, i / kTileElems);
        const std::size_t block = i % kTileElems / kBlockElems;
        ASSERT_LE(std::abs(static_cast<double>(seen.moment1[i]) - state.moment1[i]),
                  std::max(tile.scale1[block], arith::kMoment1Floor) / 254.0 * kRounding)
            << i;
        // Half a step, or a whole one if a small root was kept above zero.
        const double root = std::sqrt(static_cast<double>(state.moment2[i]));
        const double stored = std::sqrt(static_cast<double>(seen.moment2[i]));
        const double step = tile.scale2[block] / 255.0;
        ASSERT_LE(std::abs(stored - root), (root < step / 2 ? step : step / 2) * kRounding) << i;
        ASSERT_EQ(seen.moment2[i] == 0, state.moment2[i] == 0) << i;
    }
}

TEST(EightBitMoments, KeepTheLargestOfABlockExactly) {
    Values state = state_of_any_magnitude();
    const Values seen = stored(StateFormat::q8, state);
    const auto less = [](float a, float b) { return std::abs(a) < std::abs(b); };
    for (std::size_t begin = 0; begin < kElems; begin += kBlockElems) {
        const auto largest =
            std::max_element(&state.moment1[begin], &state.moment1[begin] + kBlockElems, less);
        if (std::abs(*largest) >= arith::kMoment1Floor) {
            ASSERT_EQ(seen.moment1[static_cast<std::size_t>(largest - state.moment1.data())],
                      *largest);
        }
    }
}

TEST(EightBitMoments, MakeABlockWithANanOrInfinityNanAndLeaveOthersAlone) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        Values state;
        std::ranges::fill(state.moment1, 1.0F);
        std::ranges::fill(state.moment2, 1.0F);
        state.moment1[300] = bad;
        const Values seen = stored(StateFormat::q8, state);
        EXPECT_EQ(std::ranges::count_if(seen.moment1, [](float x) { return std::isnan(x); }),
                  static_cast<std::ptrdiff_t>(kBlockElems));
        EXPECT_EQ(std::ranges::count(seen.moment1, 1.0F),
                  static_cast<std::ptrdiff_t>(kElems - kBlockElems));
    }
}

}  // namespace
}  // namespace nearstep::csd
