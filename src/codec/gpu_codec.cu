// Encodes and sums tiles on a GPU: chooses the codec's kernel, and has those of dense tiles. Used
// by offload.
#include "codec/gpu_codec.hpp"
#include "codec/gpu_tile.cuh"
#include "memory/cuda_call.hpp"

#include <algorithm>

namespace nearstep::codec {

namespace {

bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

__global__ void __launch_bounds__(kPieceThreads) encode_dense(GpuEncoding e, Dtype dtype) {
    const Piece own = load_piece(e);
#pragma unroll
    for (unsigned o = 0; o < kEach; ++o) {
        const std::size_t at = own.place * shard::kTileElems + own.piece * arith::kPieceElems +
                               Piece::octet(o) * kOctet;
        if (dtype == Dtype::fp32) {
            memory::store(own.values[o], reinterpret_cast<float*>(e.payloads) + at);
        } else {
            memory::store_rounded(own.values[o], dtype,
                                  reinterpret_cast<std::uint16_t*>(e.payloads) + at);
        }
    }
}

struct Addends {
    const std::byte* at[kMostAddends];
    unsigned count;
};

// Each thread sums eight elements over all addends. T: float, or the bits of 16-bit values.
template <typename T>
__global__ void __launch_bounds__(kPieceThreads)
    add(const Addends addends, Dtype dtype, std::size_t octets, float* sums) {
    const std::size_t octet = static_cast<std::size_t>(blockIdx.x) * kPieceThreads + threadIdx.x;
    if (octet >= octets) {
        return;
    }
    const auto load_addend = [&](unsigned addend, float(&values)[kOctet]) {
        memory::load_widened(reinterpret_cast<const T*>(addends.at[addend]) + octet * kOctet, dtype,
                             values);
    };
    float sum[kOctet];
    load_addend(0, sum);
    for (unsigned a = 1; a < addends.count; ++a) {
        float value[kOctet];
        load_addend(a, value);
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            sum[i] += value[i];
        }
    }
    memory::store(sum, sums + octet * kOctet);
}

}  // namespace

void encode_on_gpu(const Codec& codec, const GpuEncoding& encoding, const memory::Stream& stream) {
    expects(encoding.gradient_dtype != Dtype::fp16, "a gradient on the GPU is fp32 or bf16");
    expects(is_aligned(encoding.gradient) && is_aligned(encoding.payloads),
            "gradient and payloads are aligned");
    if (encoding.tiles == 0) {
        return;
    }
    expects(codec.kernel_form().has_value(), "a GPU encodes a codec that has kernels");
    const KernelForm form = *codec.kernel_form();
    switch (form.codec) {
        case arith::GradientCodec::dense_fp32:
        case arith::GradientCodec::dense_bf16:
        case arith::GradientCodec::dense_fp16:
            encode_dense<<<piece_blocks(encoding), kPieceThreads, 0, stream.handle()>>>(
                encoding, *codec.plain_dtype());
            break;
        case arith::GradientCodec::topk_bf16:
        case arith::GradientCodec::topk_fp16:
            encode_topk(encoding, form, stream.handle());
            break;
        case arith::GradientCodec::q8:
        case arith::GradientCodec::q4:
            encode_blocks(encoding, {form.codec, codec.settings().rounding}, stream.handle());
            break;
    }
    memory::check_launch();
}

void add_on_gpu(std::span<const std::byte* const> addends, Dtype dtype, std::size_t elems,
                float* sums, const memory::Stream& stream) {
    expects(!addends.empty() && addends.size() <= kMostAddends, "a sum has 1 to 64 addends");
    expects(elems % kOctet == 0, "elements are added eight at a time");
    if (elems == 0) {
        return;
    }
    Addends list{};
    std::copy(addends.begin(), addends.end(), list.at);
    list.count = static_cast<unsigned>(addends.size());
    const std::size_t octets = elems / kOctet;
    const auto blocks = static_cast<unsigned>((octets + kPieceThreads - 1) / kPieceThreads);
    const auto kernel = dtype == Dtype::fp32 ? add<float> : add<std::uint16_t>;
    kernel<<<blocks, kPieceThreads, 0, stream.handle()>>>(list, dtype, octets, sums);
    memory::check_launch();
}

}  // namespace nearstep::codec
