// Keeps the largest magnitudes of a tile: the paper's SmartComp with a fixed quota per tile.
#pragma once

#include "codec/codec.hpp"

namespace nearstep::codec {

// Keeps exactly the q = ceil(keep x 65,536) largest magnitudes; ties go to the lower index, NaN
// ranks above infinity. Payload: q ascending 16-bit indices, then q 16-bit values, little-endian: 4
// bytes per kept element. The paper counts volume: keeping 1 % of the elements is its "2 %".
class TopkCodec : public Codec {
public:
    // Values are fp16 if `dtype` is fp16, else bf16.
    TopkCodec(double keep, Dtype dtype, const Kernels& kernels);

    std::string name() const override { return "topk"; }
    CodecSettings settings() const override;
    std::size_t payload_bytes() const override { return kept_ * 4; }
    KernelForm kernel_form() const override;
    void encode(std::span<const float> tile, std::span<std::byte> payload,
                arith::TileKey key) const override;
    void decode_add(std::span<const std::byte> payload, std::size_t first,
                    std::span<float> sum) const override;

    // q, the elements kept per tile.
    std::size_t kept() const { return kept_; }

private:
    std::size_t kept_;
    bool is_fp16_;
    Kernels kernels_;
};

}  // namespace nearstep::codec
