// Old and new parameters that deltas are measured on.
#pragma once

#include "shard/partition.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nearstep::bench {

constexpr std::size_t kMessageTiles = 16;
constexpr std::size_t kMessageElems = kMessageTiles * shard::kTileElems;

// Of the parameters of a step.
struct Shares {
    double changed;
    double escaped;  // changed by more than one unit in the last place
};

// What a 124M model's steps were seen to change at rates from 0 to 6e-4, and everything.
inline constexpr std::array kShares = {
    Shares{0, 0},       Shares{0.015, 0.002}, Shares{0.049, 0.007}, Shares{0.126, 0.024},
    Shares{0.25, 0.06}, Shares{0.76, 0.46},   Shares{1, 1}};

// Both a multiple of kMessageElems. Every message has the first one's parameters.
void fill_parameters(const Shares& shares, std::span<std::uint16_t> old,
                     std::span<std::uint16_t> fresh);

}  // namespace nearstep::bench
