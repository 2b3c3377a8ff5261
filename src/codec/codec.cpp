#include "codec/codec.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "codec/block.hpp"
#include "codec/dense.hpp"
#include "codec/topk.hpp"

#include <algorithm>

namespace nearstep::codec {

std::optional<arith::BlockFormat> find_block_format(const std::string& name) {
    using arith::BlockFormat;
    for (const BlockFormat format : {BlockFormat::q8, BlockFormat::q4}) {
        if (name == name_of(format)) {
            return format;
        }
    }
    return std::nullopt;
}

const std::vector<std::string>& codec_names() {
    static const std::vector<std::string> names = {"dense", "topk", "q8", "q4"};
    return names;
}

bool has_block_codes(const std::string& name) { return find_block_format(name).has_value(); }

arith::Rounding parse_rounding(const std::string& name) {
    if (name == "nearest" || name == "stochastic") {
        return name == "nearest" ? arith::Rounding::nearest : arith::Rounding::stochastic;
    }
    throw ConfigError(
        text("The rounding \"", name, R"(" is not known: use "nearest" or "stochastic".)"));
}

std::unique_ptr<Codec> make_codec(const CodecSettings& settings) {
    const Kernels& kernels = settings.kernels == nullptr ? best_kernels() : *settings.kernels;
    if (settings.name == "dense") {
        return std::make_unique<DenseCodec>(settings.dtype, kernels);
    }
    if (settings.name == "topk") {
        return std::make_unique<TopkCodec>(settings.keep, settings.dtype, kernels);
    }
    if (const auto format = find_block_format(settings.name)) {
        return std::make_unique<BlockCodec>(BlockCoding{*format, settings.rounding}, kernels);
    }
    throw ConfigError(text(Term::codec, " \"", settings.name,
                           R"(" is not known: use "dense", "topk", "q8" or "q4".)"));
}

void decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> payloads,
                std::size_t first, std::span<float> sum) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (const std::span<const std::byte> payload : payloads) {
        codec.decode_add(payload, first, sum);
    }
}

}  // namespace nearstep::codec
