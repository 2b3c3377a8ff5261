// Encodes, squares and sums tiles on a GPU: chooses the codec's kernel and starts it. Used by
// offload.
#include "codec/gpu_codec.hpp"

#include "codec/kernel_form.hpp"
#include "codec/codec_kernels.hpp"
#include "memory/gpu_launch.hpp"
#include "shard/tile.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::codec {

namespace {

using arith::GradientCodec;
using memory::KernelLaunch;

constexpr unsigned kOctet = 8;  // elements that a thread moves at once

bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

// A kernel with a block for each piece of all tiles.
KernelLaunch by_piece(const char* file, const char* kernel, std::size_t tiles) {
    const std::size_t pieces = shard::kTileElems / arith::kPieceElems;
    return {.file = file,
            .kernel = kernel,
            .blocks = static_cast<unsigned>(tiles * pieces),
            .threads = kPieceThreads};
}

void encode_blocks(const GpuEncoding& encoding, BlockCoding coding, const memory::Stream& stream) {
    const bool is_nearest = coding.rounding == arith::Rounding::nearest;
    const char* const kernel =
        coding.codec == GradientCodec::q8
            ? (is_nearest ? "codec::encode<arith::GradientCodec::q8, arith::Rounding::nearest>"
                          : "codec::encode<arith::GradientCodec::q8, arith::Rounding::stochastic>")
            : (is_nearest ? "codec::encode<arith::GradientCodec::q4, arith::Rounding::nearest>"
                          : "codec::encode<arith::GradientCodec::q4, arith::Rounding::stochastic>");
    memory::start_kernel(by_piece("codec/gpu_block.cu", kernel, encoding.tiles), stream, encoding);
}

void encode_topk(const GpuEncoding& encoding, KernelForm form, const memory::Stream& stream) {
    const double share = static_cast<double>(form.kept) / kSampleEvery;
    const TopkEncoding arguments{
        .source = encoding,
        .kept = form.kept,
        .wanted_samples = static_cast<unsigned>(share + 3 * std::sqrt(share) + 2),
        .is_fp16 = form.codec == GradientCodec::topk_fp16};
    memory::start_kernel({.file = "codec/gpu_topk.cu",
                          .kernel = "codec::encode_topk",
                          .blocks = static_cast<unsigned>(encoding.tiles),
                          .threads = kTopkThreads},
                         stream, arguments);
}

const char* square_kernel(GradientCodec codec) {
    switch (codec) {
        case GradientCodec::dense_fp32:
            return "codec::add_up<arith::GradientCodec::dense_fp32>";
        case GradientCodec::dense_bf16:
            return "codec::add_up<arith::GradientCodec::dense_bf16>";
        case GradientCodec::dense_fp16:
            return "codec::add_up<arith::GradientCodec::dense_fp16>";
        case GradientCodec::topk_bf16:
            return "codec::add_up<arith::GradientCodec::topk_bf16>";
        case GradientCodec::topk_fp16:
            return "codec::add_up<arith::GradientCodec::topk_fp16>";
        case GradientCodec::q8:
            return "codec::add_up<arith::GradientCodec::q8>";
        case GradientCodec::q4:
            break;
    }
    return "codec::add_up<arith::GradientCodec::q4>";
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
        case GradientCodec::dense_fp32:
        case GradientCodec::dense_bf16:
        case GradientCodec::dense_fp16:
            memory::start_kernel(
                by_piece("codec/gpu_dense.cu", "codec::encode_dense", encoding.tiles), stream,
                encoding, *codec.plain_dtype());
            break;
        case GradientCodec::topk_bf16:
        case GradientCodec::topk_fp16:
            encode_topk(encoding, form, stream);
            break;
        case GradientCodec::q8:
        case GradientCodec::q4:
            encode_blocks(encoding, {form.codec, codec.settings().rounding}, stream);
            break;
    }
}

void square_on_gpu(const Codec& codec, const std::byte* payloads, std::size_t tiles,
                   double* squares, const memory::Stream& stream) {
    if (tiles == 0) {
        return;
    }
    expects(codec.kernel_form().has_value(), "a GPU decodes a codec that has kernels");
    const KernelForm form = *codec.kernel_form();
    constexpr std::size_t kTilesOfBlock = kSquareThreads / kSquareSums;
    memory::start_kernel(
        {.file = "codec/gpu_squares.cu",
         .kernel = square_kernel(form.codec),
         .blocks = static_cast<unsigned>((tiles + kTilesOfBlock - 1) / kTilesOfBlock),
         .threads = kSquareThreads},
        stream, unsigned{form.kept}, payloads, codec.payload_bytes(), tiles, squares);
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
    memory::start_kernel(
        {.file = "codec/gpu_dense.cu",
         .kernel = dtype == Dtype::fp32 ? "codec::add<float>" : "codec::add<std::uint16_t>",
         .blocks = static_cast<unsigned>((octets + kPieceThreads - 1) / kPieceThreads),
         .threads = kPieceThreads},
        stream, list, dtype, octets, sums);
}

}  // namespace nearstep::codec
