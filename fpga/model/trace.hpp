// What loops do whose steps follow the data, on random data.
#pragma once

#include <bitset>
#include <cstdint>
#include <vector>

namespace nearstep::fpga {

// Steps of merge_entries() over one payload of `kept` entries at random places: true gives a word,
// false takes an entry.
std::vector<bool> merge_trace(std::uint32_t kept);

enum class DeltaStep : std::uint8_t { reads_bitmaps, reads_census, reads_parameters, writes_quad };

// Steps of encode_deltas() over one tile.
struct DeltaTrace {
    std::vector<std::bitset<4>> steps;
    std::uint64_t quads = 0;
    std::uint32_t form = 0;  // TileForm
};

// Of a tile's bitmaps, in words of 64 bits.
struct DeltaMarks {
    std::vector<std::uint64_t> plus;
    std::vector<std::uint64_t> minus;
};

// A tile in which these shares of the parameters changed, and by more than one unit. The others
// grew.
DeltaMarks delta_marks(double changed, double escaped);

// Of the tile of delta_marks().
DeltaTrace delta_trace(double changed, double escaped);

}  // namespace nearstep::fpga
