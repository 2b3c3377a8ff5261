// Makes the tensors' start values alike on all ranks, and converts them to fp32 masters. Called by
// the other sources of the Conductor.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "csd/state_format.hpp"
#include "python/binding/conductor.hpp"

#include <algorithm>

namespace nearstep::python {

namespace {

constexpr std::size_t kMostBytesAtOnce = GiB;  // of a broadcast; MPI takes less than 2 GiB

}  // namespace

bool Conductor::holds(Dtype dtype) const {
    return dtype == Dtype::bf16 || csd::master_dtype(run_.csd.state) == Dtype::fp32;
}

std::span<std::byte> Conductor::bytes_of(std::size_t tensor, const TensorMemory& piece) const {
    return {static_cast<std::byte*>(piece.address),
            elems_of(layout_.tensors[tensor]) * size_bytes(piece.dtype)};
}

// Values in files are compared by shape and format: each rank reads only its own tiles.
void Conductor::share_start_values(std::span<const StartValues> values) {
    if (ranks_ == 1) {
        return;
    }
    const mpi::Communicator& ranks = *alike_;
    std::vector<std::uint64_t> digests;
    std::string files;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (const checkpoint::StoredTensor* stored = values[i].stored) {
            files += text(i, ' ', stored->bytes, ' ', name_of(stored->dtype.value()), '\n');
        } else {
            digests.push_back(xxh3(bytes_of(i, values[i].piece)));
        }
    }
    if (!ranks.agree(files == ranks.broadcast(files, 0))) {
        throw ConfigError(
            "The ranks read different weights: give every rank the same safetensors folder.");
    }
    const std::string mine = to_hex(xxh3(std::as_bytes(std::span(digests))));
    if (ranks.agree(mine == ranks.broadcast(mine, 0))) {
        return;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i].stored == nullptr) {
            std::span<std::byte> rest = bytes_of(i, values[i].piece);
            while (!rest.empty()) {
                const std::size_t bytes = std::min<std::size_t>(rest.size(), kMostBytesAtOnce);
                ranks.start_broadcast(rest.first(bytes), 0).wait();
                rest = rest.subspan(bytes);
            }
        }
    }
}

// The tensor's elements among `count` from `first` on.
std::pair<std::size_t, std::size_t> Conductor::overlap(std::size_t tensor, std::size_t first,
                                                       std::size_t count) const {
    const engine::Tensor& of = layout_.tensors[tensor];
    return {std::max(first, of.offset), std::min(first + count, of.offset + elems_of(of))};
}

namespace {

std::vector<std::byte> brought_from(int gpu, std::span<const std::byte> memory) {
    std::vector<std::byte> brought(memory.size());
    memory::use_gpu(gpu);
    const memory::Stream stream;
    memory::copy_to_host(brought, memory, stream);
    stream.wait();
    return brought;
}

}  // namespace

// The elements from `first` on; tensors lie side by side.
void Conductor::fill(std::span<const StartValues> values, std::size_t first,
                     std::span<float> masters) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
        const engine::Tensor& tensor = layout_.tensors[i];
        const auto [begin, end] = overlap(i, first, masters.size());
        if (begin >= end || (values[i].stored == nullptr && values[i].piece.address == nullptr)) {
            continue;
        }
        const std::span<float> to = masters.subspan(begin - first, end - begin);
        if (values[i].stored != nullptr) {
            checkpoint::Safetensors::read(*values[i].stored, begin - tensor.offset, to);
        } else {
            const Dtype dtype = values[i].piece.dtype;
            std::span<const std::byte> from =
                bytes_of(i, values[i].piece)
                    .subspan((begin - tensor.offset) * size_bytes(dtype),
                             to.size() * size_bytes(dtype));
            std::vector<std::byte> brought;
            if (plan_.gpu && memory::is_on_gpu(from.data())) {
                brought = brought_from(*plan_.gpu, from);
                from = brought;
            }
            convert_to_fp32(dtype, from.data(), to.data(), to.size());
        }
    }
}

}  // namespace nearstep::python
