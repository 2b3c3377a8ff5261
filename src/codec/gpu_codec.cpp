#include "codec/gpu_codec.hpp"

#include "base/error.hpp"
#include "codec/gpu_kernels.hpp"
#include "shard/partition.hpp"

#include <cstdint>

namespace nearstep::codec {

GpuCodec::GpuCodec(const CodecSettings& settings)
    : dtype_(settings.dtype), payload_bytes_(make_codec(settings)->payload_bytes()) {
    if (const auto format = find_block_format(settings.name)) {
        kind_ = Kind::block;
        coding_ = {*format, settings.rounding};
    } else if (settings.name == "topk") {
        kind_ = Kind::topk;
    }
}

void GpuCodec::encode(const GpuEncoding& encoding, const memory::Stream& stream) const {
    expects(encoding.gradient_dtype != Dtype::fp16, "a gradient on the GPU is fp32 or bf16");
    expects(is_aligned(encoding.gradient, 16) && is_aligned(encoding.payloads, 16),
            "gradient and payloads are aligned");
    if (encoding.tiles == 0) {
        return;
    }
    switch (kind_) {
        case Kind::dense:
            return encode_dense(encoding, dtype_, stream.handle());
        case Kind::topk:
            return encode_topk(encoding, payload_bytes_, dtype_, stream.handle());
        case Kind::block:
            return encode_blocks(encoding, coding_, payload_bytes_, stream.handle());
    }
}

}  // namespace nearstep::codec
