// Makes what an owner hands to its device: a tile's payloads as received, or one payload of their
// sum.
#pragma once

#include "codec/codec.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::exchange {

// Valid until the next take().
struct DevicePayloads {
    std::span<const std::span<const std::byte>> payloads;
    std::span<const float> sum;  // what the payloads decode to
    double squares = 0;          // sum of the squares of its first elements
};

// Decodes and sums a tile's payloads; can encode the sum again. With a dense codec (densification)
// many payloads become fewer bytes, at the cost of one more rounding; with the run's codec, dense
// sums of nodes become one payload of their group.
// docs/formats/gradient-payload.md defines the result. Not collective.
class OwnerSum {
public:
    OwnerSum();

    // `received`: the codec of the received payloads. `sum_codec`: encodes their sum; null:
    // payloads are passed on as received. `source_key`: of the sum's source, see
    // GradientScatter::source_key(). The codecs outlive the step.
    void begin_step(const codec::Codec& received, const codec::Codec* sum_codec,
                    std::uint64_t source_key);

    // `squared`: number of elements for DevicePayloads::squares.
    DevicePayloads take(std::size_t tile, std::span<const std::span<const std::byte>> payloads,
                        std::size_t squared);

private:
    double decode(const codec::Codec& codec, std::span<const std::span<const std::byte>> payloads,
                  std::size_t squared);

    const codec::Codec* received_ = nullptr;
    const codec::Codec* sum_codec_ = nullptr;
    const codec::Kernels* kernels_ = &codec::best_kernels();
    std::uint64_t source_key_ = 0;
    std::vector<float> sum_;
    std::vector<std::byte> payload_;
    std::span<const std::byte> only_;  // view of payload_
};

}  // namespace nearstep::exchange
