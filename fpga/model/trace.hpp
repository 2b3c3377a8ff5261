// Steps of loops that depend on the data, for random data.
#pragma once

#include "fpga/kernel/arithmetic.hpp"

#include <bitset>
#include <cstdint>
#include <vector>

namespace nearstep::fpga {

// Steps of merge_entries() over one payload of `kept` entries at random places: true writes a word,
// false takes an entry.
std::vector<bool> merge_trace(std::uint32_t kept);

enum class DeltaStep : std::uint8_t { reads_bitmaps, reads_census, reads_parameters, writes_quad };

// Steps of encode_deltas() over one tile.
struct DeltaTrace {
    std::vector<std::bitset<4>> steps;
    std::uint64_t quads = 0;
    DeltaForm form = DeltaForm::dense;
};

// Bitmaps of a tile, in 64-bit words.
struct DeltaMarks {
    std::vector<std::uint64_t> changed;
    std::vector<std::uint64_t> escaped;

    DeltaCensus census() const;
};

// `changed` and `escaped` are the shares of parameters that changed, and that changed by more than
// one unit. All other changes are increases.
DeltaMarks delta_marks(double changed, double escaped);

DeltaTrace delta_trace(const DeltaMarks& marks);

}  // namespace nearstep::fpga
