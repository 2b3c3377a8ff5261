#include "codec/squares.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <array>

namespace nearstep::codec {

namespace {

constexpr std::size_t kLanes = 8;

// Element i plus i + n/2 of n until one is left.
template <std::size_t kCount>
double sum_in_halves(std::array<double, kCount>& terms) {
    for (std::size_t half = kCount / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) {
            terms[i] += terms[i + half];
        }
    }
    return terms[0];
}

}  // namespace

double sum_of_squares(std::span<const float, fpga::kPieceElems> values) {
    std::array<double, fpga::kPieceBlocks> blocks{};
    for (std::size_t b = 0; b < blocks.size(); ++b) {
        const float* from = values.data() + b * fpga::kScaleElems;
        std::array<double, kLanes> lanes{};
        for (std::size_t l = 0; l < kLanes; ++l) {
            const auto square = [&](std::size_t i) {
                const auto value = static_cast<double>(from[i * kLanes + l]);
                return value * value;
            };
            lanes[l] = ((square(0) + square(4)) + (square(2) + square(6))) +
                       ((square(1) + square(5)) + (square(3) + square(7)));
        }
        blocks[b] = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
                    ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
    }
    return sum_in_halves(blocks);
}

double sum_of_pieces(std::span<const double, kSquarePieces> pieces) {
    std::array<double, kSquarePieces> terms{};
    std::ranges::copy(pieces, terms.begin());
    return sum_in_halves(terms);
}

double sum_of_squares_of_tile(std::span<const float> values) {
    expects(values.size() <= shard::kTileElems, "a tile has no more values");
    std::array<double, kSquarePieces> pieces{};
    for (std::size_t piece = 0; piece * fpga::kPieceElems < values.size(); ++piece) {
        const auto rest = values.subspan(piece * fpga::kPieceElems);
        if (rest.size() >= fpga::kPieceElems) {
            pieces.at(piece) = sum_of_squares(rest.first<fpga::kPieceElems>());
        } else {
            std::array<float, fpga::kPieceElems> padded{};
            std::ranges::copy(rest, padded.begin());
            pieces.at(piece) = sum_of_squares(padded);
        }
    }
    return sum_of_pieces(pieces);
}

}  // namespace nearstep::codec
