// The exact delta of new 16-bit parameters against the old ones that the receiver holds.
//
// A message carries consecutive tiles, each in its smallest form; docs/parameter-payload.md has the
// format. What is decoded has the bits of what was encoded, whatever they are.
#pragma once

#include "codec/delta_format.hpp"
#include "shard/partition.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace nearstep::codec {

// "dense", "bitmap", "units", "codes" or "list".
const char* name_of(DeltaForm form);

// The form with the fewest bytes.
DeltaForm smallest_form(const DeltaCensus& census);

// Tiles and bytes by form; bytes are those of payloads and their entries in the table.
struct DeltaTally {
    std::array<std::uint64_t, kDeltaForms> tiles{};
    std::array<std::uint64_t, kDeltaForms> bytes{};

    DeltaTally& operator+=(const DeltaTally& more);
    DeltaTally operator-(const DeltaTally& earlier) const;
};

// Bytes that no message of so many tiles exceeds.
std::size_t most_message_bytes(std::size_t tiles);

// Bytes of memory that hold any message of so many tiles, and the slack behind it.
std::size_t message_room_bytes(std::size_t tiles);

// Writes one message, tile by tile.
class DeltaWriter {
public:
    // `room`: message_room_bytes() of memory, aligned to 8 bytes, that outlives the writer.
    DeltaWriter(std::span<std::byte> room, shard::TileRange tiles,
                const DeltaKernels& kernels = best_delta_kernels());

    // The next tile: kTileElems old and new parameters.
    void add(const std::uint16_t* old, const std::uint16_t* fresh);

    // After the last tile. Returns the message's bytes.
    std::size_t finish();

private:
    std::span<std::byte> room_;
    shard::TileRange tiles_;
    const DeltaKernels* kernels_;
    std::size_t next_ = 0;  // tile, from the first
    std::size_t end_;       // of what is written
};

// Reads one message.
class DeltaReader {
public:
    // `room`: memory that begins with a message, with slack behind it, aligned to 8 bytes. Throws
    // Error if it is not a message of these tiles.
    DeltaReader(std::span<const std::byte> room, shard::TileRange tiles,
                const DeltaKernels& kernels = best_delta_kernels());

    std::size_t bytes() const { return bytes_; }

    shard::TileRange tiles() const { return tiles_; }

    // What is wrong with the table, as a sentence, if it cannot be one. Payloads of a table that is
    // right are within the message.
    std::optional<std::string> fault_of_table() const;

    // What is wrong if that of the message's tile `tile`, counted from its first, is.
    std::string fault_of_tile(std::size_t tile) const;

    void add_to(DeltaTally& tally) const;

    // `parameters`: those of the tiles, on entry the old ones, on return the new. Returns what is
    // wrong, as a sentence, if the message is damaged or the old ones were not those of the sender;
    // then they are neither.
    std::optional<std::string> apply_to(std::span<std::byte> parameters) const;

private:
    DeltaEntry entry_of(std::size_t tile) const;
    bool is_within(const DeltaEntry& entry, std::size_t at) const;
    bool apply_tile(const DeltaEntry& entry, const std::byte* payload, std::uint16_t* target) const;
    bool apply_codes(const DeltaEntry& entry, const std::byte* payload,
                     std::uint16_t* target) const;

    std::span<const std::byte> room_;
    shard::TileRange tiles_;
    const DeltaKernels* kernels_;
    std::size_t bytes_ = 0;
};

}  // namespace nearstep::codec
