#include "codec/gpu_squares.hpp"

#include "codec/gpu_kernels.hpp"

namespace nearstep::codec {

void sum_squares(const CodecSettings& settings, const std::byte* payloads, std::size_t tiles,
                 double* sums, const memory::Stream& stream) {
    const std::size_t bytes = make_codec(settings)->payload_bytes();
    if (tiles == 0) {
        return;
    }
    if (const auto format = find_block_format(settings.name)) {
        sum_squares_of_blocks(payloads, tiles, *format, bytes, sums, stream.handle());
    } else if (settings.name == "topk") {
        sum_squares_of_topk(payloads, tiles, bytes, settings.dtype, sums, stream.handle());
    } else {
        sum_squares_of_dense(payloads, tiles, settings.dtype, sums, stream.handle());
    }
}

}  // namespace nearstep::codec
