// Tests deltas between parameters of two steps in each of their forms.
#include "codec/delta.hpp"

#include "base/digest.hpp"
#include "codec/delta_tiles.hpp"
#include "support/test.hpp"

#include <ostream>

namespace nearstep::codec {

std::ostream& operator<<(std::ostream& out, const Kernels& kernels) { return out << kernels.name; }

namespace {

using shard::kTileElems;
using shard::TileRange;
constexpr std::size_t kTileBytes = 2 * kTileElems;
constexpr std::size_t kHeadBytes = 24;
constexpr std::size_t kEntryBytes = 16;

DeltaTally tally_of(Message& message, std::size_t tiles, std::size_t first = 5) {
    DeltaTally tally;
    DeltaReader(message.room(), {first, first + tiles}).add_to(tally);
    return tally;
}

// The size that the documented formulas give for a tile.
std::size_t smallest_bytes(const Tile& old, const Tile& fresh) {
    std::size_t differing = 0;
    std::size_t escaped = 0;
    for (std::size_t i = 0; i < old.size(); ++i) {
        const int difference = (fresh[i] - old[i]) & 0xFFFF;
        differing += difference != 0 ? 1U : 0U;
        escaped += difference != 0 && difference != 1 && difference != 0xFFFF ? 1U : 0U;
    }
    const std::size_t most = std::min(std::size_t{131072}, 8192 + 2 * differing);
    const std::size_t codes = 8192 + 2 * ((differing + 63) / 64 * 8) + 2 * escaped;
    return std::min({most, 16384 + 2 * escaped, codes, 4 * differing});
}

class Delta : public testing::TestWithParam<Kernels> {
protected:
    // Encodes and decodes one tile; returns its form.
    static DeltaForm round_trip(const Tile& old, const Tile& fresh) {
        Message message = encode(GetParam(), {old}, {fresh});
        const Message reference = encode(scalar(), {old}, {fresh});
        EXPECT_EQ(message.bytes, reference.bytes);
        EXPECT_EQ(std::memcmp(message.memory.data(), reference.memory.data(), message.bytes), 0);
        const std::size_t payload = message.bytes - kHeadBytes - kEntryBytes;
        EXPECT_EQ(payload, (smallest_bytes(old, fresh) + 7) / 8 * 8);
        EXPECT_LE(message.bytes, most_message_bytes(1));

        Tile copy = old;
        const DeltaReader reader(message.room(), {5, 6}, GetParam());
        EXPECT_EQ(reader.bytes(), message.bytes);
        EXPECT_EQ(reader.apply_to(std::as_writable_bytes(std::span(copy))), std::nullopt);
        EXPECT_EQ(copy, fresh);

        const DeltaTally tally = tally_of(message, 1);
        const auto found = std::ranges::find(tally.tiles, 1U) - tally.tiles.begin();
        return static_cast<DeltaForm>(found);
    }

    static Kernels scalar() { return kernels().front(); }
};

TEST_P(Delta, OfEqualTilesIsEmpty) {
    EXPECT_EQ(round_trip(random_words(1), random_words(1)), DeltaForm::list);
}

TEST_P(Delta, OfUnrelatedTilesIsDense) {
    EXPECT_EQ(round_trip(random_words(1), random_words(2)), DeltaForm::dense);
}

TEST_P(Delta, TakesEachFormWhereItIsTheSmallest) {
    const Tile old = random_words(3);
    EXPECT_EQ(round_trip(old, changed(old, 0.02, 0.01, 7)), DeltaForm::list);
    EXPECT_EQ(round_trip(old, changed(old, 0.10, 0.02, 7)), DeltaForm::codes);
    EXPECT_EQ(round_trip(old, changed(old, 0.60, 0.02, 7)), DeltaForm::units);
    EXPECT_EQ(round_trip(old, changed(old, 0.00, 0.30, 7)), DeltaForm::bitmap);
    EXPECT_EQ(round_trip(old, changed(old, 0.00, 0.99, 7)), DeltaForm::dense);
    EXPECT_EQ(round_trip(old, changed(old, 1.00, 0.00, 7)), DeltaForm::units);
}

TEST_P(Delta, KeepsAnyBitsAtAnyShareOfChanges) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const Tile old = random_words(seed);
        const double units = static_cast<double>(random_of(seed, 1) % 1000) / 1000;
        const double jumps = (1 - units) * static_cast<double>(random_of(seed, 2) % 1000) / 1000;
        const double scale = seed % 3 == 0 ? 0.05 : 1;
        SCOPED_TRACE(seed);
        round_trip(old, changed(old, units * scale, jumps * scale, seed + 1000));
    }
}

TEST_P(Delta, KeepsEveryPairOfSpecialValues) {
    auto [old, fresh] = special_values();
    round_trip(old, fresh);
    std::ranges::fill(old, 0x0000);  // zeros that turn negative: jumps
    std::ranges::fill(fresh, 0x8000);
    EXPECT_EQ(round_trip(old, fresh), DeltaForm::dense);
    std::ranges::fill(old, 0xFFFF);  // units are modulo 65,536
    std::ranges::fill(fresh, 0x0000);
    EXPECT_EQ(round_trip(old, fresh), DeltaForm::units);
}

TEST_P(Delta, ChangesOneFormForTheNextAtTheCountWhereBothAreEqual) {
    const Tile old(kTileElems, 100);
    const auto jumps = [&](std::size_t count) {
        Tile fresh = old;
        std::fill_n(fresh.end() - static_cast<std::ptrdiff_t>(count), count, std::uint16_t{9});
        return fresh;
    };
    EXPECT_EQ(round_trip(old, jumps(4095)), DeltaForm::list);
    EXPECT_EQ(round_trip(old, jumps(4096)), DeltaForm::bitmap);  // 16,384 bytes either way
    EXPECT_EQ(round_trip(old, jumps(61439)), DeltaForm::bitmap);
    EXPECT_EQ(round_trip(old, jumps(61440)), DeltaForm::dense);  // 131,072 either way
    Tile fresh = jumps(40000);
    std::fill_n(fresh.begin(), 4096, std::uint16_t{101});
    EXPECT_EQ(round_trip(old, fresh), DeltaForm::bitmap);  // units would have as many bytes
    std::fill_n(fresh.begin(), 4097, std::uint16_t{99});
    EXPECT_EQ(round_trip(old, fresh), DeltaForm::units);
    std::ranges::fill(fresh, std::uint16_t{100});
    std::fill_n(fresh.begin(), 32704, std::uint16_t{101});
    EXPECT_EQ(round_trip(old, fresh), DeltaForm::codes);
    std::fill_n(fresh.begin(), 32768, std::uint16_t{99});
    EXPECT_EQ(round_trip(old, fresh), DeltaForm::units);  // 16,384 bytes either way
}

TEST_P(Delta, MessagesOfSeveralTilesKeepThemApart) {
    const std::vector<Tile> old = {random_words(1), random_words(2), random_words(3),
                                   random_words(4), random_words(5)};
    const std::vector<Tile> fresh = {changed(old[0], 0.01, 0.013, 5), random_words(9),
                                     changed(old[2], 0.6, 0.01, 6), changed(old[3], 0, 0.4, 7),
                                     changed(old[4], 0.1, 0.01, 8)};
    Message message = encode(GetParam(), old, fresh);
    std::vector<std::uint16_t> vector = joined(old);
    const DeltaReader reader(message.room(), {5, 10}, GetParam());
    EXPECT_EQ(reader.apply_to(std::as_writable_bytes(std::span(vector))), std::nullopt);
    EXPECT_EQ(vector, joined(fresh));
    const DeltaTally tally = tally_of(message, 5);
    EXPECT_EQ(tally.tiles, (std::array<std::uint64_t, kDeltaForms>{1, 1, 1, 1, 1}));
    EXPECT_EQ(tally.bytes[0], kEntryBytes + kTileBytes);
}

TEST_P(Delta, IsAtMostOnePercentLongerThanDense) {
    const std::vector<Tile> old = {random_words(1), random_words(2)};
    const std::vector<Tile> fresh = {random_words(3), random_words(4)};
    EXPECT_LE(static_cast<double>(encode(GetParam(), old, fresh).bytes), 1.01 * 2 * kTileBytes);
}

TEST_P(Delta, RefusesACopyThatIsNotTheSenders) {
    const Tile old = random_words(1);
    for (const double share : {0.001, 0.04, 0.3}) {
        Message message = encode(GetParam(), {old, old}, {old, changed(old, share, share, 2)});
        std::vector<std::uint16_t> vector = joined({old, old});
        vector[17] ^= 1U;  // in the tile without changes
        const DeltaReader reader(message.room(), {5, 7}, GetParam());
        const auto fault = reader.apply_to(std::as_writable_bytes(std::span(vector)));
        ASSERT_TRUE(fault) << "a wrong copy was taken for a right one";
        EXPECT_NE(fault->find("tile 5"), std::string::npos) << *fault;
    }
}

TEST_P(Delta, RefusesADamagedMessageAndReadsNothingBeyondIt) {
    const Tile old = random_words(1);
    for (const double share : {0.01, 0.1, 0.3, 0.6, 0.9}) {
        const Message good = encode(GetParam(), {old}, {changed(old, share / 2, share / 2, 2)});
        for (std::size_t trial = 0; trial < 200; ++trial) {
            Message bad = good;
            // Half of the trials hit header and table.
            const std::size_t bits = 8 * (trial % 2 == 0 ? kHeadBytes + kEntryBytes : good.bytes);
            const std::size_t bit = random_of(3, trial) % bits;
            bad.room()[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
            Tile copy = old;
            try {
                const DeltaReader reader(bad.room(), {5, 6}, GetParam());
                if (!reader.apply_to(std::as_writable_bytes(std::span(copy)))) {
                    // Zeros between payloads and unused bits of an entry have no effect.
                    EXPECT_EQ(copy, changed(old, share / 2, share / 2, 2)) << "bit " << bit;
                }
            } catch (const Error&) {
                EXPECT_LT(bit / 8, kHeadBytes);
            }
        }
    }
}

TEST_P(Delta, RefusesAMessageOfOtherTiles) {
    const Tile old = random_words(1);
    Message message = encode(GetParam(), {old}, {old});
    EXPECT_THROW(DeltaReader(message.room(), {6, 7}, GetParam()), Error);
    EXPECT_THROW(DeltaReader(message.room(), {5, 7}, GetParam()), Error);
}

std::string kernels_name(const testing::TestParamInfo<Kernels>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Kernels, Delta, testing::ValuesIn(kernels()), kernels_name);

}  // namespace
}  // namespace nearstep::codec
