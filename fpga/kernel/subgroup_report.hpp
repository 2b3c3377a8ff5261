// The updater's report on a subgroup: one word of totals, then one word per tile. C++14, no
// exceptions, no containers.
#pragma once

#include "fpga/kernel/word.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// bad_argument: only the report was written.
enum class UpdaterStatus : std::uint32_t { done = 1, bad_argument = 2 };

// A double is stored as the bits of a uint64_t, so that the struct is plain data in hardware.
struct UpdaterTotals {
    std::uint32_t status;  // UpdaterStatus
    std::uint32_t tiles;
    std::uint64_t parameter_bytes;   // of the new parameters, or of the message
    std::uint64_t gradient_squares;  // a double: the tiles' values summed in order
    std::uint64_t gradients_not_finite;
    std::uint64_t masters_not_finite;
    std::uint64_t unused[3];  // NOLINT(modernize-avoid-c-arrays)
};
static_assert(sizeof(UpdaterTotals) == kWordBytes, "totals are one word");

// Padding counts as parameters.
struct UpdaterTile {
    std::uint64_t parameter_digest;  // XXH3 (64 bits, seed 0) of the tile's new parameters
    std::uint64_t gradient_squares;  // a double: of the summed gradient, before scaling
    std::uint32_t gradients_not_finite;
    std::uint32_t masters_not_finite;
    std::uint32_t form;  // of deltas, as in docs/formats/parameter-payload.md; 0 for parameters
    std::uint32_t changed;
    std::uint32_t escaped;
    std::uint32_t payload_bytes;  // sent for this tile, without its table entry in a message
    std::uint64_t unused[3];      // NOLINT(modernize-avoid-c-arrays)
};
static_assert(sizeof(UpdaterTile) == kWordBytes, "a tile's report is one word");

}  // namespace fpga
}  // namespace nearstep
