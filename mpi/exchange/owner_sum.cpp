// Decodes and adds up the payloads of a tile at its owner. Used by the step pipeline and by joint
// sums (src/offload).
#include "mpi/exchange/owner_sum.hpp"

#include "shard/partition.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace nearstep::exchange {

OwnerSum::OwnerSum() : sum_(shard::kTileElems) {}

void OwnerSum::begin_step(const codec::Codec& received, const codec::Codec* sum_codec,
                          std::uint64_t source_key) {
    received_ = &received;
    sum_codec_ = sum_codec;
    source_key_ = source_key;
    payload_.resize(sum_codec != nullptr ? sum_codec->payload_bytes() : 0);
}

// Decodes into sum_. Each piece is squared while it is in the first-level cache.
double OwnerSum::decode(const codec::Codec& codec,
                        std::span<const std::span<const std::byte>> payloads, std::size_t squared) {
    std::array<double, codec::kSquareSums> sums{};
    for (std::size_t first = 0; first < sum_.size(); first += arith::kPieceElems) {
        const std::span<float> piece = std::span(sum_).subspan(first, arith::kPieceElems);
        codec::decode_sum(codec, payloads, first, piece);
        const std::size_t left = squared - std::min(squared, first);
        kernels_->add_squares(piece.data(), sums.data(), std::min(left, piece.size()));
    }
    return std::accumulate(sums.begin(), sums.end(), 0.0);
}

DevicePayloads OwnerSum::take(std::size_t tile,
                              std::span<const std::span<const std::byte>> payloads,
                              std::size_t squared) {
    if (sum_codec_ == nullptr) {
        const double squares = decode(*received_, payloads, squared);
        return {.payloads = payloads, .sum = sum_, .squares = squares};
    }
    codec::decode_sum(*received_, payloads, 0, sum_);
    sum_codec_->encode(sum_, payload_, arith::tile_key(source_key_, tile));
    only_ = payload_;
    const double squares = decode(*sum_codec_, {&only_, 1}, squared);
    return {.payloads = {&only_, 1}, .sum = sum_, .squares = squares};
}

}  // namespace nearstep::exchange
