// Compares delta messages applied on a GPU with DeltaReader; skipped without a GPU.
#include "codec/gpu_delta.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "codec/delta_tiles.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace nearstep::codec {
namespace {

using memory::GpuBuffer;
using shard::kTileElems;
using shard::TileRange;

constexpr std::size_t kGpuHeadBytes = sizeof(DeltaHeader);
constexpr std::size_t kGpuEntryBytes = sizeof(DeltaEntry);

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
}

void append(std::vector<std::byte>& to, const void* from, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(from);
    to.insert(to.end(), begin, begin + bytes);
}

// A tile's payload in a form that need not be the smallest.
std::vector<std::byte> payload_in(DeltaForm form, const Tile& old, const Tile& fresh,
                                  DeltaCensus& census) {
    const DeltaKernels& kernels = delta_kernels().front();
    std::vector<std::uint64_t> plus(kBitmapWords);
    std::vector<std::uint64_t> minus(kBitmapWords);
    std::vector<std::uint64_t> changed(kBitmapWords);
    std::vector<std::uint64_t> escaped(kBitmapWords);
    census = kernels.compare(old.data(), fresh.data(), plus.data(), minus.data());
    for (std::size_t w = 0; w < kBitmapWords; ++w) {
        changed[w] = plus[w] | minus[w];
        escaped[w] = plus[w] & minus[w];
    }
    std::vector<std::uint16_t> values(kTileElems + kDeltaSlackBytes);
    std::vector<std::uint64_t> packed(kBitmapWords + kDeltaSlackBytes);
    std::vector<std::byte> payload;
    kernels.pick_values(escaped.data(), fresh.data(), values.data());
    switch (form) {
        case DeltaForm::dense:
            append(payload, fresh.data(), kDeltaTileBytes);
            return payload;
        case DeltaForm::bitmap:
            append(payload, changed.data(), kBitmapBytes);
            kernels.pick_values(changed.data(), fresh.data(), values.data());
            append(payload, values.data(), 2 * census.changed);
            return payload;
        case DeltaForm::units:
            append(payload, plus.data(), kBitmapBytes);
            append(payload, minus.data(), kBitmapBytes);
            break;
        case DeltaForm::codes:
            append(payload, changed.data(), kBitmapBytes);
            for (const auto* bits : {&plus, &minus}) {
                kernels.pack(changed.data(), bits->data(), packed.data());
                append(payload, packed.data(), 8 * bitmap_words(census.changed));
            }
            break;
        case DeltaForm::list:
            kernels.pick_indices(changed.data(), values.data());
            append(payload, values.data(), 2 * census.changed);
            kernels.pick_values(changed.data(), fresh.data(), values.data());
            append(payload, values.data(), 2 * census.changed);
            return payload;
    }
    append(payload, values.data(), 2 * census.escaped);
    return payload;
}

// A message whose tiles have the given forms.
Message message_in(const std::vector<DeltaForm>& forms, const std::vector<Change>& changes,
                   std::size_t first) {
    std::vector<std::byte> table;
    std::vector<std::byte> payloads;
    for (std::size_t tile = 0; tile < forms.size(); ++tile) {
        const Tile& fresh = changes[tile].fresh;
        DeltaCensus census;
        const auto payload = payload_in(forms[tile], changes[tile].old, fresh, census);
        EXPECT_EQ(payload.size(), payload_bytes(forms[tile], census));
        const DeltaEntry entry{static_cast<std::uint32_t>(census.changed << 8U) |
                                   static_cast<std::uint32_t>(forms[tile]),
                               static_cast<std::uint32_t>(census.escaped),
                               xxh3(std::as_bytes(std::span(fresh)))};
        append(table, &entry, sizeof entry);
        append(payloads, payload.data(), payload.size());
        payloads.resize(round_up(payloads.size(), kDeltaAlignment));
    }
    Message message;
    message.bytes = kGpuHeadBytes + table.size() + payloads.size();
    message.memory.resize((message.bytes + kDeltaSlackBytes) / 8);
    const DeltaHeader header{.magic = {'n', 's', 'd', 'm'},
                             .tiles = static_cast<std::uint32_t>(forms.size()),
                             .first_tile = first,
                             .bytes = message.bytes};
    std::byte* at = message.room().data();
    std::memcpy(at, &header, kGpuHeadBytes);
    std::memcpy(at + kGpuHeadBytes, table.data(), table.size());
    std::memcpy(at + kGpuHeadBytes + table.size(), payloads.data(), payloads.size());
    return message;
}

std::vector<Tile> olds_of(const std::vector<Change>& changes) {
    std::vector<Tile> tiles;
    for (const Change& change : changes) {
        tiles.push_back(change.old);
    }
    return tiles;
}

std::vector<Tile> freshes_of(const std::vector<Change>& changes) {
    std::vector<Tile> tiles;
    for (const Change& change : changes) {
        tiles.push_back(change.fresh);
    }
    return tiles;
}

// Changes of every density, and some that a wrong prefix count would break.
std::vector<Change> changes() {
    const Tile old = random_words(3);
    const Tile flat(kTileElems, 100);
    std::vector<Change> all = {special_values(),
                               {old, old},
                               {flat, flat},
                               {old, random_words(4)},
                               {flat, Tile(kTileElems, 101)},
                               {flat, Tile(kTileElems, 99)},
                               {flat, Tile(kTileElems, 7)},
                               {Tile(kTileElems, 0xFFFF), Tile(kTileElems, 0x0000)},
                               {Tile(kTileElems, 0x0000), Tile(kTileElems, 0x8000)}};
    for (const double units : {0.0, 0.001, 0.02, 0.2, 0.6, 0.95}) {
        for (const double jumps : {0.0, 0.0005, 0.01, 0.04}) {
            all.push_back({old, changed(old, units, jumps, all.size())});
        }
    }
    all.push_back({old, changed(old, 0.1, 0.7, 70)});
    // The vector's last tile, which ends in zeros, and tiles with one change at either end.
    Change padded{changed(flat, 0, 0.9, 71), {}};
    std::fill(padded.old.begin() + 12345, padded.old.end(), std::uint16_t{0});
    padded.fresh = changed(padded.old, 0.3, 0.01, 72);
    std::fill(padded.fresh.begin() + 12345, padded.fresh.end(), std::uint16_t{0});
    all.push_back(padded);
    for (const std::size_t at : {std::size_t{0}, kTileElems - 1}) {
        all.push_back({old, old});
        all.back().fresh[at] ^= 0x5555U;
    }
    return all;
}

class GpuDeltas : public testing::Test {
protected:
    void SetUp() override {
        if (memory::gpus() == 0) {
            GTEST_SKIP() << "there is no GPU here";
        }
        memory::use_gpu(0);
        stream_.emplace();
    }

    GpuBuffer to_gpu(std::span<const std::byte> bytes) const {
        GpuBuffer buffer(bytes.size());
        copy_to_gpu(buffer.span(), bytes, *stream_);
        stream_->wait();
        return buffer;
    }

    struct Result {
        std::optional<std::string> fault;
        std::vector<std::uint16_t> parameters;
    };

    // Applies the message, or `copies` of it at once, and returns the result.
    Result apply(Message& message, TileRange tiles, const std::vector<std::uint16_t>& old,
                 std::size_t copies = 1) const {
        const DeltaReader reader(message.room(), tiles);
        const GpuBuffer there = to_gpu(message.room().first(reader.bytes()));
        GpuBuffer verdicts(copies * sizeof(std::uint32_t));
        fill_with_zeros(verdicts.span(), *stream_);
        std::vector<GpuBuffer> parameters;
        std::vector<GpuDelta> deltas;
        for (std::size_t i = 0; i < copies; ++i) {
            parameters.push_back(to_gpu(std::as_bytes(std::span(old))));
            deltas.push_back({.reader = &reader,
                              .message = there.span().data(),
                              .parameters = parameters.back().as<std::uint16_t>(),
                              .verdict = verdicts.as<std::uint32_t>() + i});
        }
        if (const auto fault = start_deltas(deltas, *stream_)) {
            return {fault, {}};
        }
        std::vector<std::uint32_t> found(copies);
        std::vector<std::uint16_t> fresh(old.size());
        copy_to_host(std::as_writable_bytes(std::span(found)), verdicts.span(), *stream_);
        copy_to_host(std::as_writable_bytes(std::span(fresh)), parameters.back().span(), *stream_);
        stream_->wait();
        EXPECT_EQ(found, std::vector<std::uint32_t>(copies, found.front()));
        return {fault_of(reader, found.front()), fresh};
    }

    std::optional<memory::Stream> stream_;
};

TEST_F(GpuDeltas, GiveTheNewParameters) {
    const std::vector<Change> all = changes();
    Message message = encode(best_delta_kernels(), olds_of(all), freshes_of(all));
    const Result result = apply(message, {5, 5 + all.size()}, joined(olds_of(all)));
    EXPECT_EQ(result.fault, std::nullopt);
    EXPECT_TRUE(result.parameters == joined(freshes_of(all)));
}

TEST_F(GpuDeltas, GiveTheNewParametersInEveryForm) {
    const std::vector<Change> all = changes();
    for (const DeltaForm form : {DeltaForm::dense, DeltaForm::bitmap, DeltaForm::units,
                                 DeltaForm::codes, DeltaForm::list}) {
        SCOPED_TRACE(name_of(form));
        Message message = message_in(std::vector(all.size(), form), all, 7);
        const TileRange tiles{7, 7 + all.size()};
        std::vector<std::uint16_t> copy = joined(olds_of(all));
        ASSERT_EQ(
            DeltaReader(message.room(), tiles).apply_to(std::as_writable_bytes(std::span(copy))),
            std::nullopt);
        ASSERT_TRUE(copy == joined(freshes_of(all)));
        const Result result = apply(message, tiles, joined(olds_of(all)));
        EXPECT_EQ(result.fault, std::nullopt);
        EXPECT_TRUE(result.parameters == copy);
    }
}

TEST_F(GpuDeltas, GiveTheNewParametersAtAnyShareOfChanges) {
    std::vector<Change> all;
    std::vector<DeltaForm> forms;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        const double units = static_cast<double>(random_of(seed, 1) % 1000) / 1000;
        const double jumps = (1 - units) * static_cast<double>(random_of(seed, 2) % 1000) / 1000;
        const double scale = seed % 3 == 0 ? 0.05 : 1;
        const Tile old = random_words(seed);
        all.push_back({old, changed(old, units * scale, jumps * scale, seed + 1000)});
        forms.push_back(static_cast<DeltaForm>(seed % kDeltaForms));
    }
    Message message = message_in(forms, all, 0);
    const Result result = apply(message, {0, all.size()}, joined(olds_of(all)));
    EXPECT_EQ(result.fault, std::nullopt);
    EXPECT_TRUE(result.parameters == joined(freshes_of(all)));
}

TEST_F(GpuDeltas, AreManyAtOnce) {
    const Tile old = random_words(1);
    const std::vector<Tile> fresh = {changed(old, 0.1, 0.01, 2), changed(old, 0.5, 0.01, 3)};
    Message message = encode(best_delta_kernels(), {old, old}, fresh);
    const Result result = apply(message, {5, 7}, joined({old, old}), kMostDeltas);
    EXPECT_EQ(result.fault, std::nullopt);
    EXPECT_TRUE(result.parameters == joined(fresh));
    EXPECT_EQ(start_deltas({}, *stream_), std::nullopt);
}

TEST_F(GpuDeltas, RefuseACopyThatIsNotTheSenders) {
    const Tile old = random_words(1);
    for (const double share : {0.001, 0.04, 0.3}) {
        const Tile fresh = changed(old, share, share, 2);
        Message message = encode(best_delta_kernels(), {old, old, old}, {fresh, old, fresh});
        std::vector<std::uint16_t> vector = joined({old, old, old});
        vector[kTileElems + 17] ^= 1U;  // in the tile without changes
        std::vector<std::uint16_t> copy = vector;
        const auto wanted =
            DeltaReader(message.room(), {5, 8}).apply_to(std::as_writable_bytes(std::span(copy)));
        const Result result = apply(message, {5, 8}, vector);
        ASSERT_TRUE(result.fault) << "a wrong copy was taken for a right one";
        EXPECT_NE(result.fault->find("tile 6"), std::string::npos) << *result.fault;
        EXPECT_EQ(result.fault, wanted);
    }
}

TEST_F(GpuDeltas, RefuseADamagedMessage) {
    const Tile old = random_words(1);
    const std::size_t heads = kGpuHeadBytes + 2 * kGpuEntryBytes;
    for (const double share : {0.01, 0.1, 0.3, 0.6, 0.9}) {
        const std::vector<Tile> fresh = {changed(old, share / 2, share / 2, 2),
                                         changed(old, share, share / 50, 3)};
        const Message good = encode(best_delta_kernels(), {old, old}, fresh);
        for (std::size_t trial = 0; trial < 60; ++trial) {
            Message bad = good;
            const std::size_t bits = 8 * (trial % 2 == 0 ? heads : good.bytes);
            const std::size_t bit = random_of(3, trial) % bits;
            bad.room()[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
            std::vector<std::uint16_t> copy = joined({old, old});
            try {
                const DeltaReader reader(bad.room(), {5, 7});
                const bool is_right = !reader.apply_to(std::as_writable_bytes(std::span(copy)));
                const Result result = apply(bad, {5, 7}, joined({old, old}));
                EXPECT_EQ(!result.fault, is_right) << "bit " << bit;
                if (!result.fault) {
                    EXPECT_TRUE(result.parameters == joined(fresh)) << "bit " << bit;
                }
            } catch (const Error&) {
                EXPECT_LT(bit / 8, kGpuHeadBytes);
            }
        }
    }
}

}  // namespace
}  // namespace nearstep::codec
