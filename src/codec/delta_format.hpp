// The parts of a delta message, as read by the CPU and by GPU kernels.
// docs/formats/parameter-payload.md describes them.
#pragma once

#include "base/host_device.hpp"
#include "shard/tile.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace nearstep::codec {

// Bytes behind the end of an array that kernels may read or overwrite.
constexpr std::size_t kDeltaSlackBytes = 64;

// 64-bit words of a bitmap with one bit per parameter of a tile.
constexpr std::size_t kBitmapWords = shard::kTileElems / 64;

// Per tile: how many parameters changed, and how many of those by more than one unit.
struct DeltaCensus {
    std::size_t changed = 0;
    std::size_t escaped = 0;
};

enum class DeltaForm : std::uint8_t { dense, bitmap, units, codes, list };
constexpr std::size_t kDeltaForms = 5;

// Alignment in bytes of a message and of each payload in it.
constexpr std::size_t kDeltaAlignment = 8;

constexpr std::size_t kDeltaTileBytes = shard::kTileElems * sizeof(std::uint16_t);
constexpr std::size_t kBitmapBytes = kBitmapWords * sizeof(std::uint64_t);

struct DeltaHeader {
    std::array<char, 4> magic;
    std::uint32_t tiles;
    std::uint64_t first_tile;
    std::uint64_t bytes;
};
static_assert(sizeof(DeltaHeader) == 24);

// A tile's entry in the table.
struct DeltaEntry {
    std::uint32_t form_and_changed;  // changed x 256 + form
    std::uint32_t escaped;
    std::uint64_t digest;

    NEARSTEP_HOST_DEVICE DeltaForm form() const {
        return static_cast<DeltaForm>(form_and_changed & 0xFFU);
    }
    NEARSTEP_HOST_DEVICE DeltaCensus census() const { return {form_and_changed >> 8U, escaped}; }
    bool is_possible() const {
        return (form_and_changed & 0xFFU) < kDeltaForms && census().changed <= shard::kTileElems &&
               escaped <= census().changed;
    }
};
static_assert(sizeof(DeltaEntry) == 16);

// Offset in bytes of the end of the table.
NEARSTEP_HOST_DEVICE constexpr std::size_t delta_table_end(std::size_t tiles) {
    return sizeof(DeltaHeader) + tiles * sizeof(DeltaEntry);
}

NEARSTEP_HOST_DEVICE constexpr std::size_t bitmap_words(std::size_t bits) {
    return (bits + 63) / 64;
}

NEARSTEP_HOST_DEVICE constexpr std::size_t payload_bytes(DeltaForm form,
                                                         const DeltaCensus& census) {
    switch (form) {
        case DeltaForm::dense:
            break;
        case DeltaForm::bitmap:
            return kBitmapBytes + 2 * census.changed;
        case DeltaForm::units:
            return 2 * kBitmapBytes + 2 * census.escaped;
        case DeltaForm::codes:
            return kBitmapBytes + 16 * bitmap_words(census.changed) + 2 * census.escaped;
        case DeltaForm::list:
            return 4 * census.changed;
    }
    return kDeltaTileBytes;
}

}  // namespace nearstep::codec
