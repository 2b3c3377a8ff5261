// What every gradient codec expects from its callers.
#pragma once

#include "base/error.hpp"
#include "codec/codec.hpp"
#include "shard/partition.hpp"

namespace nearstep::codec {

static_assert(shard::kTileElems % arith::kPieceElems == 0, "a tile is whole pieces");

inline void expect_tile(const Codec& codec, std::span<const float> tile,
                        std::span<const std::byte> payload) {
    expects(tile.size() == shard::kTileElems, "a codec encodes whole tiles");
    expects(payload.size() == codec.payload_bytes(), "a payload has its codec's size");
}

inline void expect_pieces(const Codec& codec, std::span<const std::byte> payload, std::size_t first,
                          std::span<const float> sum) {
    expects(first % arith::kPieceElems == 0 && sum.size() % arith::kPieceElems == 0 &&
                first + sum.size() <= shard::kTileElems,
            "a codec decodes whole pieces of a tile");
    expects(payload.size() == codec.payload_bytes(), "a payload has its codec's size");
}

}  // namespace nearstep::codec
