// Sums of squares of decoded tiles, in an order that vectors of a CPU and threads of a GPU follow
// alike.
//
// All in double, where the square of an fp32 value is exact. In a block of 64 elements: element i
// plus i + n/2 of n until one is left, as in the sums of docs/gradient-payload.md; in a piece the
// same over its 64 blocks; in a tile the same over its 16 pieces. What block codes decode to has a
// scale that all of a block share, so their sum over a block is exact in any order.
#pragma once

#include "fpga/kernel/gradient_lane.hpp"
#include "shard/tile.hpp"

#include <cstddef>
#include <span>

namespace nearstep::codec {

constexpr std::size_t kSquarePieces = shard::kTileElems / fpga::kPieceElems;

// Of a piece.
double sum_of_squares(std::span<const float, fpga::kPieceElems> values);

// Of a tile, given its pieces'.
double sum_of_pieces(std::span<const double, kSquarePieces> pieces);

// Of a tile, of which there are `values`, at most kTileElems; behind them are zeros.
double sum_of_squares_of_tile(std::span<const float> values);

}  // namespace nearstep::codec
