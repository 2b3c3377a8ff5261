#include "codec/codec.hpp"

#include "base/error.hpp"
#include "codec/dense.hpp"
#include "codec/topk.hpp"

#include <algorithm>

namespace nearstep::codec {

std::unique_ptr<Codec> make_codec(const CodecSettings& settings) {
    if (settings.name == "dense") {
        return std::make_unique<DenseCodec>(settings.dtype);
    }
    if (settings.name == "topk") {
        return std::make_unique<TopkCodec>(settings.keep, settings.dtype);
    }
    throw ConfigError(
        text("compress.codec \"", settings.name, "\" is not known: use \"dense\" or \"topk\"."));
}

void decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> payloads,
                std::span<float> sum) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (const std::span<const std::byte> payload : payloads) {
        codec.decode_add(payload, sum);
    }
}

}  // namespace nearstep::codec
