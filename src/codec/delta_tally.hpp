// Counts the tiles of deltas, by the form in which they were written.
#pragma once

#include "arith/formats.hpp"

#include <array>
#include <cstdint>

namespace nearstep::codec {

// Tiles and bytes per form. Bytes include payloads and their table entries.
struct DeltaTally {
    std::array<std::uint64_t, arith::kDeltaForms> tiles{};
    std::array<std::uint64_t, arith::kDeltaForms> bytes{};

    DeltaTally& operator+=(const DeltaTally& more);
    DeltaTally operator-(const DeltaTally& earlier) const;
};

}  // namespace nearstep::codec
