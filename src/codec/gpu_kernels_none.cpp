// codec/gpu_kernels.hpp for a build without CUDA. GPU memory cannot be allocated there, so these
// are never called.
#include "base/error.hpp"
#include "codec/gpu_kernels.hpp"
#include "codec/gpu_sum.hpp"

namespace nearstep::codec {

namespace {

[[noreturn]] void refuse() { throw CudaError("This program was built without CUDA."); }

}  // namespace

void encode_dense(const GpuEncoding& /*encoding*/, Dtype /*dtype*/, CUstream_st* /*stream*/) {
    refuse();
}
void encode_topk(const GpuEncoding& /*encoding*/, std::size_t /*payload_bytes*/, Dtype /*dtype*/,
                 CUstream_st* /*stream*/) {
    refuse();
}
void encode_blocks(const GpuEncoding& /*encoding*/, BlockCoding /*coding*/,
                   std::size_t /*payload_bytes*/, CUstream_st* /*stream*/) {
    refuse();
}

void add_dense(std::span<const std::byte* const> /*addends*/, Dtype /*dtype*/,
               std::size_t /*elems*/, float* /*sums*/, const memory::Stream& /*stream*/) {
    refuse();
}

}  // namespace nearstep::codec
