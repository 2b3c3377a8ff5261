// Block codes: a few bits per element and one 16-bit scale per 64 elements (q8, q4).
#pragma once

#include "codec/codec.hpp"

namespace nearstep::codec {

// "q8" or "q4".
const char* name_of(arith::BlockFormat format);

// Payload: the codes of all pieces, then the scales of all blocks.
class BlockCodec : public Codec {
public:
    BlockCodec(BlockCoding coding, const Kernels& kernels) : coding_(coding), kernels_(kernels) {}

    std::string name() const override { return name_of(coding_.format); }
    CodecSettings settings() const override {
        return {.name = name(), .rounding = coding_.rounding};
    }
    std::size_t payload_bytes() const override;
    KernelForm kernel_form() const override;
    void encode(std::span<const float> tile, std::span<std::byte> payload,
                arith::TileKey key) const override;
    void decode_add(std::span<const std::byte> payload, std::size_t first,
                    std::span<float> sum) const override;

private:
    BlockCoding coding_;
    Kernels kernels_;
};

}  // namespace nearstep::codec
