// A delta message, applied by each of this CPU's kernels.
#include "base/error.hpp"
#include "codec/delta.hpp"
#include "fuzz.hpp"

#include <array>

namespace nearstep::fuzz {

namespace {

using shard::kTileElems;

constexpr std::size_t kMostTiles = codec::kDeltaForms + 1;
constexpr std::size_t kTileCounts = 3;

// Tiles of new parameters change so that all forms occur.
std::uint16_t fresh_of(std::uint16_t old, std::size_t tile, std::size_t i) {
    constexpr std::size_t kEvery[kMostTiles] = {1, 2, 2, 9, 700, kTileElems};
    if (i % kEvery[tile] != 0) {
        return old;
    }
    const bool is_escaped = tile == 0 || tile == 1 || i % (kEvery[tile] * 31) == 0;
    return static_cast<std::uint16_t>(old + (is_escaped ? 77 + i : i % 3 == 0 ? 0xFFFF : 1));
}

std::vector<std::uint16_t> old_parameters(std::size_t tiles) {
    std::vector<std::uint16_t> old(tiles * kTileElems);
    for (std::size_t i = 0; i < old.size(); ++i) {
        old[i] = static_cast<std::uint16_t>(i * 40503);
    }
    return old;
}

// A message and the unused room after it.
std::vector<std::byte> make_message(std::size_t first, std::size_t tiles) {
    std::vector<std::byte> room(codec::message_room_bytes(tiles));
    codec::DeltaWriter writer(room, {.begin = 10, .end = 10 + tiles});
    const std::vector<std::uint16_t> old = old_parameters(tiles);
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        std::vector<std::uint16_t> fresh(
            old.begin() + static_cast<std::ptrdiff_t>(tile * kTileElems),
            old.begin() + static_cast<std::ptrdiff_t>((tile + 1) * kTileElems));
        for (std::size_t i = 0; i < kTileElems; ++i) {
            fresh[i] = fresh_of(fresh[i], (first + tile) % kMostTiles, i);
        }
        writer.add(old.data() + tile * kTileElems, fresh.data());
    }
    room.resize(writer.finish() + codec::kDeltaSlackBytes);
    return room;
}

const std::vector<std::byte>& message_of(std::size_t first, std::size_t tiles) {
    static std::array<std::array<std::vector<std::byte>, kTileCounts>, kMostTiles> made;
    std::vector<std::byte>& message = made.at(first).at(tiles);
    if (message.empty()) {
        message = make_message(first, tiles);
    }
    return message;
}

}  // namespace

std::vector<std::string> seeds() {
    std::vector<std::string> all;
    for (std::uint8_t first = 0; first < kMostTiles; ++first) {
        for (std::uint8_t tiles = 0; tiles < kTileCounts; ++tiles) {
            all.push_back(Output().number(first).number(tiles));
            // The first tile's counts of changed and escaped parameters.
            all.push_back(Output()
                              .number(first)
                              .number(tiles)
                              .number(std::uint32_t{25})
                              .number(std::uint8_t{2})
                              .rest("\x01\x02"));
            all.push_back(Output()
                              .number(first)
                              .number(tiles)
                              .number(std::uint32_t{28})
                              .number(std::uint8_t{2})
                              .rest("\x01\x02"));
        }
    }
    return all;
}

void read(Bytes bytes) {
    Input input(bytes);
    const std::size_t first = input.choice(kMostTiles);
    const std::size_t tiles = input.choice(kTileCounts);
    std::vector<std::byte> room = message_of(first, tiles);
    edit(input, room);
    std::optional<std::vector<std::uint16_t>> expected;
    for (const codec::Kernels& kernels : codec::kernels()) {
        const codec::DeltaReader reader(room, {.begin = 10, .end = 10 + tiles}, kernels);
        require(reader.bytes() <= room.size() - codec::kDeltaSlackBytes,
                "a message is in its room");
        std::vector<std::uint16_t> parameters = old_parameters(tiles);
        const std::optional<std::string> fault =
            reader.apply_to(std::as_writable_bytes(std::span(parameters)));
        if (!fault) {
            codec::DeltaTally tally;
            reader.add_to(tally);
            require(!expected || *expected == parameters, "all kernels give the same bits");
            expected = parameters;
        }
    }
}

}  // namespace nearstep::fuzz
