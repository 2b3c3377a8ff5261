// 16-bit parameter tiles before and after a step, and their messages.
#pragma once

#include "base/random.hpp"
#include "codec/delta.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::codec {

using Tile = std::vector<std::uint16_t>;

inline std::uint64_t random_of(std::uint64_t seed, std::size_t i) {
    return random_bits(seed, 0, i);
}

inline Tile random_words(std::uint64_t seed) {
    Tile tile(shard::kTileElems);
    for (std::size_t i = 0; i < tile.size(); ++i) {
        tile[i] = static_cast<std::uint16_t>(random_of(seed, i));
    }
    return tile;
}

// `old` with about the given shares of elements changed by one unit and changed at random.
inline Tile changed(const Tile& old, double units, double jumps, std::uint64_t seed) {
    Tile fresh = old;
    for (std::size_t i = 0; i < fresh.size(); ++i) {
        const std::uint64_t bits = random_of(seed, i);
        const double draw = static_cast<double>(bits >> 40U) * 0x1p-24;
        if (draw < units) {
            fresh[i] = static_cast<std::uint16_t>((bits & 1U) != 0 ? fresh[i] + 1 : fresh[i] - 1);
        } else if (draw < units + jumps) {
            fresh[i] = static_cast<std::uint16_t>(bits);
        }
    }
    return fresh;
}

struct Change {
    Tile old;
    Tile fresh;
};

// All pairs of special bf16 and fp16 values and their neighbours: zeros, smallest and largest
// subnormals and normals, infinities, quiet and signalling NaNs, with both signs.
inline Change special_values() {
    std::vector<std::uint16_t> special;
    for (const unsigned value :
         {0x0000U, 0x0001U, 0x007FU, 0x0080U, 0x03FFU, 0x0400U, 0x7BFFU, 0x7C00U, 0x7C01U, 0x7E00U,
          0x7F7FU, 0x7F80U, 0x7F81U, 0x7FC0U, 0x7FFFU, 0x3F80U, 0x3C00U}) {
        for (const unsigned sign : {0U, 0x8000U}) {
            for (const unsigned step : {0U, 1U, 0xFFFFU}) {
                special.push_back(static_cast<std::uint16_t>((value | sign) + step));
            }
        }
    }
    Change change{Tile(shard::kTileElems, 0x3F80), Tile(shard::kTileElems, 0x3F80)};
    std::size_t at = 0;
    for (const std::uint16_t before : special) {
        for (const std::uint16_t after : special) {
            change.old[at] = before;
            change.fresh[at] = after;
            ++at;
        }
    }
    return change;
}

struct Message {
    std::vector<std::uint64_t> memory;
    std::size_t bytes = 0;

    std::span<std::byte> room() { return std::as_writable_bytes(std::span(memory)); }
};

inline Message encode(const Kernels& kernels, const std::vector<Tile>& old,
                      const std::vector<Tile>& fresh, std::size_t first = 5) {
    Message message;
    message.memory.assign(message_room_bytes(old.size()) / 8, 0xEEEEEEEEEEEEEEEEU);
    DeltaWriter writer(message.room(), shard::TileRange{first, first + old.size()}, kernels);
    for (std::size_t tile = 0; tile < old.size(); ++tile) {
        writer.add(old[tile].data(), fresh[tile].data());
    }
    message.bytes = writer.finish();
    return message;
}

inline std::vector<std::uint16_t> joined(const std::vector<Tile>& tiles) {
    std::vector<std::uint16_t> all;
    for (const Tile& tile : tiles) {
        all.insert(all.end(), tile.begin(), tile.end());
    }
    return all;
}

}  // namespace nearstep::codec
