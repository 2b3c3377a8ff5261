// Adds gradients for python/nearstep/_gradients, on the host and on the GPU. Called by module.cpp.
#include "base/error.hpp"
#include "codec/codec_kernels.hpp"
#include "memory/gpu.hpp"
#include "python/binding/conversions.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::python {

namespace {

// An address in GPU memory and the format of what is there.
using GpuPiece = std::pair<std::uintptr_t, std::string>;

// sums = all pieces, added in their order; each sum of two is rounded to the sums' format. The
// first piece may be the sums themselves, or narrower and at the end of their memory: no sum is
// written where a value is read later.
void add_on_host(std::uintptr_t sums, const std::string& format, const Pieces& pieces,
                 std::size_t elems) {
    constexpr std::size_t kAtOnce = 1024;  // in the first-level cache with a part of a piece
    const std::vector<TensorMemory> from = pieces_of(pieces);
    expects(!from.empty(), "there is something to add");
    const Dtype dtype = dtype_of(format);
    const nanobind::gil_scoped_release without_python;
    const codec::Kernels& kernels = codec::best_kernels();
    std::array<float, kAtOnce> part{};
    std::array<std::uint16_t, kAtOnce> rounded{};
    for (std::size_t first = 0; first < elems; first += kAtOnce) {
        const std::size_t count = std::min(kAtOnce, elems - first);
        for (const TensorMemory& piece : from) {
            const auto* values =
                static_cast<const std::byte*>(piece.address) + first * size_bytes(piece.dtype);
            const auto convert = &piece == from.data() ? kernels.widen : kernels.add_widened;
            convert(piece.dtype, values, part.data(), count);
            const bool is_a_sum = &piece != &from.front() && &piece != &from.back();
            if (is_a_sum && dtype != Dtype::fp32) {
                kernels.narrow(part.data(), dtype, rounded.data(), count);
                kernels.widen(dtype, rounded.data(), part.data(), count);
            }
        }
        kernels.narrow(part.data(), dtype, at<std::byte>(sums) + first * size_bytes(dtype), count);
    }
}

// sums = one + other, see memory::add_on_gpu().
void add_on_gpu(std::uintptr_t sums, const GpuPiece& one, const GpuPiece& other, std::size_t elems,
                std::uintptr_t stream) {
    memory::add_on_gpu({at<float>(sums), elems}, at<const void>(one.first), dtype_of(one.second),
                       at<const void>(other.first), dtype_of(other.second),
                       memory::Stream::borrowed(at<CUstream_st>(stream)));
}

}  // namespace

void add_sums(nanobind::module_& m) {
    m.def("add_on_host", &add_on_host);
    m.def("add_on_gpu", &add_on_gpu);
}

}  // namespace nearstep::python
