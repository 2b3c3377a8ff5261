// Makes the tensors' start values alike on all ranks, passes them to ranks that serve, and converts
// them to fp32 masters. Called by the other sources of OptimizerSession.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "csd/state_format.hpp"
#include "engine/placement/devices.hpp"
#include "python/binding/optimizer_session.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace nearstep::python {

namespace {

constexpr std::size_t kMostBytesAtOnce = GiB;  // of a broadcast; MPI takes less than 2 GiB
constexpr std::size_t kMostElemsAtOnce = std::size_t{1} << 24U;  // of rank 0's values

}  // namespace

bool OptimizerSession::holds(Dtype dtype) const {
    return dtype == Dtype::bf16 || csd::master_dtype(run_.csd.state) == Dtype::fp32;
}

std::span<std::byte> OptimizerSession::bytes_of(std::size_t tensor,
                                                const TensorMemory& piece) const {
    return {static_cast<std::byte*>(piece.address),
            elems_of(layout_.tensors[tensor]) * size_bytes(piece.dtype)};
}

// Values in files are compared by shape and format: each rank reads only its own tiles.
void OptimizerSession::share_start_values(std::span<const StartValues> values) const {
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
std::pair<std::size_t, std::size_t> OptimizerSession::overlap(std::size_t tensor, std::size_t first,
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
void OptimizerSession::fill(std::span<const StartValues> values, std::size_t first,
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

engine::Carried OptimizerSession::carried_state() const {
    const auto as_bytes = std::as_bytes(std::span(carried_program_));
    return {.position = carried_position_,
            .moments =
                [this](std::size_t first, std::span<float> moments1, std::span<float> moments2) {
                    for (std::size_t i = 0; i < carried_.size(); ++i) {
                        const auto [begin, end] = overlap(i, first, moments1.size());
                        if (begin >= end) {
                            continue;
                        }
                        const std::size_t from = begin - layout_.tensors[i].offset;
                        std::copy_n(carried_[i].moments[0] + from, end - begin,
                                    moments1.subspan(begin - first).begin());
                        std::copy_n(carried_[i].moments[1] + from, end - begin,
                                    moments2.subspan(begin - first).begin());
                    }
                },
            .program = {as_bytes.begin(), as_bytes.end()}};
}

// --- Between rank 0 and the ranks that serve ---

Formats formats_of(std::span<const StartValues> values) {
    Formats formats(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i].stored != nullptr) {
            formats[i] = Dtype::fp32;
        } else if (values[i].piece.address != nullptr) {
            formats[i] = values[i].piece.dtype;
        }
    }
    return formats;
}

// Sends the values tensor by tensor, as take_from_rank_0() receives them.
void OptimizerSession::pass_to_servers(std::span<const StartValues> values) const {
    if (rank_ != 0 || run_.csd.storage_ranks == 0) {
        return;
    }
    std::vector<float> read;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const engine::Tensor& tensor = layout_.tensors[i];
        const std::size_t elems = elems_of(tensor);
        for (std::size_t at = 0; at < elems; at += kMostElemsAtOnce) {
            const std::size_t count = std::min(elems - at, kMostElemsAtOnce);
            if (values[i].stored != nullptr) {
                read.resize(count);
                checkpoint::Safetensors::read(*values[i].stored, at, read);
                servers_->start_broadcast(std::as_writable_bytes(std::span(read)), 0).wait();
            } else if (values[i].piece.address != nullptr) {
                const std::size_t bytes = size_bytes(values[i].piece.dtype);
                servers_
                    ->start_broadcast(
                        bytes_of(i, values[i].piece).subspan(at * bytes, count * bytes), 0)
                    .wait();
            }
        }
    }
}

// The values of the tiles that this rank owns; others take no memory.
std::vector<StartValues> OptimizerSession::take_from_rank_0(const Formats& formats) {
    const engine::PlacedSettings& placed = opened_->settings();
    const int ranks = world_->size();
    std::vector<int> all(static_cast<std::size_t>(ranks));  // as there are storage ranks
    std::iota(all.begin(), all.end(), 0);
    const shard::Replica copy = engine::make_copy(placed, layout_.elems, all, ranks);
    served_ = memory::Buffer::untouched(layout_.elems * sizeof(float));
    std::vector<StartValues> values(formats.size());
    std::vector<std::byte> received;
    for (std::size_t i = 0; i < formats.size(); ++i) {
        if (!formats[i]) {
            continue;
        }
        const engine::Tensor& tensor = layout_.tensors.at(i);
        const Dtype dtype = *formats[i];
        const std::size_t bytes = size_bytes(dtype);
        std::byte* const to = served_.span().data() + tensor.offset * sizeof(float);
        values[i].piece = {to, dtype};
        const std::size_t elems = elems_of(tensor);
        for (std::size_t at = 0; at < elems; at += kMostElemsAtOnce) {
            const std::size_t count = std::min(elems - at, kMostElemsAtOnce);
            received.resize(count * bytes);
            servers_->start_broadcast(received, 0).wait();
            for (std::size_t first = at; first < at + count;) {
                const std::size_t tile = (tensor.offset + first) / shard::kTileElems;
                const std::size_t end =
                    std::min(at + count, (tile + 1) * shard::kTileElems - tensor.offset);
                if (copy.owner_of_tile(tile) == world_->rank()) {
                    std::memcpy(to + first * bytes, received.data() + (first - at) * bytes,
                                (end - first) * bytes);
                }
                first = end;
            }
        }
    }
    return values;
}

}  // namespace nearstep::python
