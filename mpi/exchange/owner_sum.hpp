// What an owner hands to its device: the payloads of a tile as they came, or one of their sum.
#pragma once

#include "codec/codec.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::exchange {

// Of one tile; valid until the next one is taken.
struct Handed {
    std::span<const std::span<const std::byte>> payloads;
    std::span<const float> sum;  // what the payloads decode to
};

// Densification, if the sum is encoded as dense: fewer bytes where many payloads meet, for one more
// rounding. docs/gradient-payload.md defines the result. Not collective.
class OwnerSum {
public:
    OwnerSum();

    // Payloads are of `came`; `handed` encodes their sum, null: they are handed on as they came.
    // `random_key`: of the step. The codecs outlive the step.
    void begin_step(const codec::Codec& came, const codec::Codec* handed, std::uint64_t random_key);

    Handed take(std::size_t tile, std::span<const std::span<const std::byte>> payloads);

private:
    const codec::Codec* came_ = nullptr;
    const codec::Codec* handed_ = nullptr;
    std::uint64_t random_key_ = 0;
    std::vector<float> sum_;
    std::vector<std::byte> payload_;
    std::span<const std::byte> only_;  // payload_ as a list of one
};

}  // namespace nearstep::exchange
