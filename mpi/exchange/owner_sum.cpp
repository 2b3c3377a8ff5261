#include "mpi/exchange/owner_sum.hpp"

#include "base/random.hpp"
#include "shard/partition.hpp"

namespace nearstep::exchange {

OwnerSum::OwnerSum() : sum_(shard::kTileElems) {}

void OwnerSum::begin_step(const codec::Codec& came, const codec::Codec* handed,
                          std::uint64_t random_key) {
    came_ = &came;
    handed_ = handed;
    random_key_ = random_key;
    payload_.resize(handed != nullptr ? handed->payload_bytes() : 0);
}

Handed OwnerSum::take(std::size_t tile, std::span<const std::span<const std::byte>> payloads) {
    codec::decode_sum(*came_, payloads, 0, sum_);
    if (handed_ == nullptr) {
        return {.payloads = payloads, .sum = sum_};
    }
    // Use the same key as the slicer of the first group.
    handed_->encode(sum_, payload_, arith::tile_key(random_bits(random_key_, 0, 0), tile));
    only_ = payload_;
    codec::decode_sum(*handed_, {&only_, 1}, 0, sum_);
    return {.payloads = {&only_, 1}, .sum = sum_};
}

}  // namespace nearstep::exchange
