// Old and new parameters for the delta benchmarks.
#pragma once

#include "shard/partition.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nearstep::bench {

constexpr std::size_t kMessageTiles = 16;
constexpr std::size_t kMessageElems = kMessageTiles * shard::kTileElems;

// Shares of a step's parameters.
struct Shares {
    double changed;
    double escaped;  // changed by more than one unit in the last place
};

// Shares seen in steps of a 124M model at learning rates from 0 to 6e-4, and a full change.
inline constexpr std::array kShares = {
    Shares{0, 0},       Shares{0.015, 0.002}, Shares{0.049, 0.007}, Shares{0.126, 0.024},
    Shares{0.25, 0.06}, Shares{0.76, 0.46},   Shares{1, 1}};

// Both sizes are multiples of kMessageElems. Every message repeats the first one's parameters.
void fill_parameters(const Shares& shares, std::span<std::uint16_t> old,
                     std::span<std::uint16_t> fresh);

}  // namespace nearstep::bench
