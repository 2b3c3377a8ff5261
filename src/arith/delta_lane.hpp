// The forms of a tile's delta and their sizes, for the CPU's codec and the FPGA's kernel
// (docs/formats/parameter-payload.md). C++14, no exceptions, no containers.
#pragma once

#include "arith/formats.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace arith {

// Bytes of a message's header, and of a tile's entry in the table behind it.
constexpr std::uint32_t kDeltaHeaderBytes = 24;
constexpr std::uint32_t kDeltaEntryBytes = 16;

// Per tile: how many parameters changed, and how many of those by more than one unit.
struct DeltaCensus {
    std::uint32_t changed;
    std::uint32_t escaped;
};

constexpr std::uint32_t words_of_bits(std::uint32_t bits) { return (bits + 63) / 64; }

// Bytes of the payload of a tile with this many parameters.
constexpr std::uint32_t delta_bytes(DeltaForm form, const DeltaCensus& census,
                                    std::uint32_t tile_elems) {
    const std::uint32_t bitmap = tile_elems / 8;
    const std::uint32_t escapes = 2 * census.escaped;
    return form == DeltaForm::bitmap  ? bitmap + 2 * census.changed
           : form == DeltaForm::units ? 2 * bitmap + escapes
           : form == DeltaForm::codes ? bitmap + 16 * words_of_bits(census.changed) + escapes
           : form == DeltaForm::list  ? 4 * census.changed
                                      : 2 * tile_elems;
}

// The form with the fewest bytes; of forms with equal size, the first.
constexpr DeltaForm smallest_form(const DeltaCensus& census, std::uint32_t tile_elems) {
    DeltaForm best = DeltaForm::dense;
    for (std::uint32_t form = 1; form < kDeltaForms; ++form) {
        const auto other = static_cast<DeltaForm>(form);
        best = delta_bytes(other, census, tile_elems) < delta_bytes(best, census, tile_elems)
                   ? other
                   : best;
    }
    return best;
}

}  // namespace arith
}  // namespace nearstep
