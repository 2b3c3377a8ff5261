// Stands in for codec/gpu_codec.hpp's functions in a build without CUDA.
#include "base/error.hpp"
#include "codec/gpu_codec.hpp"

namespace nearstep::codec {

namespace {

[[noreturn]] void refuse() { throw CudaError("This program was built without CUDA."); }

}  // namespace

void encode_on_gpu(const Codec&, const GpuEncoding&, const memory::Stream&) { refuse(); }

void square_on_gpu(const Codec&, const std::byte*, std::size_t, double*, const memory::Stream&) {
    refuse();
}

void add_on_gpu(std::span<const std::byte* const>, Dtype, std::size_t, float*,
                const memory::Stream&) {
    refuse();
}

}  // namespace nearstep::codec
