#include "codec/dense.hpp"

#include "codec/pieces.hpp"

namespace nearstep::codec {

std::size_t DenseCodec::payload_bytes() const { return shard::kTileElems * size_bytes(dtype_); }

KernelForm DenseCodec::kernel_form() const {
    switch (dtype_) {
        case Dtype::fp32:
            return {arith::GradientCodec::dense_fp32};
        case Dtype::fp16:
            return {arith::GradientCodec::dense_fp16};
        case Dtype::bf16:
            break;
    }
    return {arith::GradientCodec::dense_bf16};
}

void DenseCodec::encode(std::span<const float> tile, std::span<std::byte> payload,
                        arith::TileKey /*key*/) const {
    expect_tile(*this, tile, payload);
    kernels_.narrow(tile.data(), dtype_, payload.data(), tile.size());
}

void DenseCodec::decode_add(std::span<const std::byte> payload, std::size_t first,
                            std::span<float> sum) const {
    expect_pieces(*this, payload, first, sum);
    kernels_.add_widened(dtype_, payload.data() + first * size_bytes(dtype_), sum.data(),
                         sum.size());
}

}  // namespace nearstep::codec
