#include "codec/dense.hpp"

#include "base/error.hpp"
#include "shard/partition.hpp"

#include <cstring>

namespace nearstep::codec {

namespace {

// Adds `payload`'s elements, read as Raw and widened by `widen`.
template <typename Raw, typename Widen>
void add_elements(const std::byte* payload, float* sum, Widen widen) {
    for (std::size_t i = 0; i < shard::kTileElems; ++i) {
        Raw raw{};
        std::memcpy(&raw, payload + i * sizeof(Raw), sizeof(Raw));
        sum[i] += widen(raw);
    }
}

}  // namespace

std::size_t DenseCodec::payload_bytes() const { return shard::kTileElems * size_bytes(dtype_); }

void DenseCodec::encode(std::span<const float> tile, std::span<std::byte> payload) const {
    expects(tile.size() == shard::kTileElems, "a codec encodes whole tiles");
    expects(payload.size() == payload_bytes(), "a payload has its codec's size");
    convert_from_fp32(tile.data(), dtype_, payload.data(), tile.size());
}

void DenseCodec::decode_add(std::span<const std::byte> payload, std::span<float> sum) const {
    expects(sum.size() == shard::kTileElems, "a codec decodes whole tiles");
    expects(payload.size() == payload_bytes(), "a payload has its codec's size");
    switch (dtype_) {
        case Dtype::fp32:
            add_elements<float>(payload.data(), sum.data(), [](float raw) { return raw; });
            break;
        case Dtype::bf16:
            add_elements<std::uint16_t>(payload.data(), sum.data(),
                                        [](std::uint16_t raw) { return from_bf16(raw); });
            break;
        case Dtype::fp16:
            add_elements<std::uint16_t>(payload.data(), sum.data(),
                                        [](std::uint16_t raw) { return from_fp16(raw); });
            break;
    }
}

}  // namespace nearstep::codec
