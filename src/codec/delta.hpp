// The exact delta between new 16-bit parameters and the old ones that the receiver holds.
//
// A message holds consecutive tiles, each in its smallest form. The format is in
// docs/formats/parameter-payload.md. Decoding restores every bit, whatever the values are.
#pragma once

#include "codec/codec_kernels.hpp"
#include "codec/delta_tally.hpp"
#include "shard/partition.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace nearstep::codec {

using arith::DeltaForm;
using arith::kDeltaForms;

// "dense", "bitmap", "units", "codes" or "list".
const char* name_of(DeltaForm form);

// Upper bound on the size of a message of this many tiles.
std::size_t most_message_bytes(std::size_t tiles);

// Memory needed for any message of this many tiles, including the slack behind it.
std::size_t message_room_bytes(std::size_t tiles);

// Writes one message, tile by tile.
class DeltaWriter {
public:
    // `room`: message_room_bytes() bytes, aligned to 8; outlives the writer.
    DeltaWriter(std::span<std::byte> room, shard::TileRange tiles,
                const Kernels& kernels = best_kernels());

    // Appends the next tile: kTileElems old and new parameters.
    void add(const std::uint16_t* old, const std::uint16_t* fresh);

    // Call after the last tile. Returns the size of the message in bytes.
    std::size_t finish();

private:
    std::span<std::byte> room_;
    shard::TileRange tiles_;
    const Kernels* kernels_;
    std::size_t next_ = 0;  // tile, relative to the first
    std::size_t end_;       // end of the bytes written so far
};

// Reads one message.
class DeltaReader {
public:
    // `room`: memory that starts with a message, aligned to 8 bytes, with slack behind it. Throws
    // Error if it is not a message of these tiles.
    DeltaReader(std::span<const std::byte> room, shard::TileRange tiles,
                const Kernels& kernels = best_kernels());

    std::size_t bytes() const { return bytes_; }

    // The message must be intact.
    void add_to(DeltaTally& tally) const;

    // Updates `parameters`, the tiles' parameters, from old to new. Returns an error sentence if
    // the message is damaged or the old parameters differ from the sender's; then `parameters`
    // holds neither.
    std::optional<std::string> apply_to(std::span<std::byte> parameters) const;

private:
    std::span<const std::byte> room_;
    shard::TileRange tiles_;
    const Kernels* kernels_;
    std::size_t bytes_ = 0;
};

}  // namespace nearstep::codec
