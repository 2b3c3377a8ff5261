// The dense codec: every value of the tile in a given format.
#pragma once

#include "codec/codec.hpp"

namespace nearstep::codec {

// Payload: kTileElems values of `dtype`, little-endian, rounded to nearest even.
class DenseCodec : public Codec {
public:
    DenseCodec(Dtype dtype, const Kernels& kernels) : dtype_(dtype), kernels_(kernels) {}

    std::string name() const override { return "dense"; }
    CodecSettings settings() const override { return {.name = name(), .dtype = dtype_}; }
    std::size_t payload_bytes() const override;
    std::optional<Dtype> plain_dtype() const override { return dtype_; }
    KernelForm kernel_form() const override;
    void encode(std::span<const float> tile, std::span<std::byte> payload,
                arith::TileKey key) const override;
    void decode_add(std::span<const std::byte> payload, std::size_t first,
                    std::span<float> sum) const override;

private:
    Dtype dtype_;
    Kernels kernels_;
};

}  // namespace nearstep::codec
