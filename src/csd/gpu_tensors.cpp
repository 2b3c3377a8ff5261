// Keeps the list of tensors in GPU memory that an update writes. Used by the engine, gpu_engine.cpp
// and the Python binding.
#include "csd/gpu_tensors.hpp"

#include "base/error.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <functional>
#include <span>

namespace nearstep::csd {

using shard::kTileElems;

GpuTensors::GpuTensors(int gpu, std::size_t elems, std::size_t most)
    : gpu_(gpu),
      elems_(elems),
      is_covered_(shard::tiles_of(elems)),
      is_here_(shard::tiles_of(elems)) {
    memory::use_gpu(gpu);
    on_gpu_ = memory::GpuBuffer(most * sizeof(GpuTensor));
}

void GpuTensors::use(const std::vector<GpuTensor>& tensors, CUevent_st* unused,
                     const bool* are_written) {
    unused_ = unused;
    are_written_ = are_written;
    if (tensors == tensors_) {
        return;
    }
    const auto bytes = std::as_bytes(std::span(tensors));
    expects(bytes.size() <= on_gpu_.size(), "there are no more tensors than were announced");
    memory::use_gpu(gpu_);
    const memory::Stream stream;
    copy_to_gpu(on_gpu_.span().first(bytes.size()), bytes, stream);
    stream.wait();
    tensors_ = tensors;
    is_covered_.assign(is_covered_.size(), true);
    std::size_t end = 0;
    for (const GpuTensor& tensor : tensors) {
        leave_out(end, tensor.begin);
        end = tensor.end;
    }
    leave_out(end, elems_);
}

// Elements [begin, end), which may be none.
void GpuTensors::leave_out(std::size_t begin, std::size_t end) {
    for (std::size_t tile = begin / kTileElems; begin < end && tile < shard::tiles_of(end);
         ++tile) {
        is_covered_.at(tile) = false;
    }
}

bool GpuTensors::cover(std::size_t first_tile, std::size_t tiles) const {
    const auto first = is_covered_.begin() + static_cast<std::ptrdiff_t>(first_tile);
    return std::all_of(first, first + static_cast<std::ptrdiff_t>(tiles), std::identity());
}

std::span<const GpuTensor> GpuTensors::of(std::size_t first_tile, std::size_t tiles) const {
    const auto first =
        std::ranges::upper_bound(tensors_, first_tile * kTileElems, {}, &GpuTensor::end);
    const auto last = std::ranges::lower_bound(tensors_, (first_tile + tiles) * kTileElems, {},
                                               &GpuTensor::begin);
    return {reinterpret_cast<const GpuTensor*>(on_gpu_.span().data()) + (first - tensors_.begin()),
            static_cast<std::size_t>(last - first)};
}

void GpuTensors::take(GpuTiles& tiles) {
    const std::span<const GpuTensor> taking = of(tiles.first_tile, tiles.tiles);
    tiles.tensors = taking.data();
    tiles.tensor_count = taking.size();
    for (std::size_t tile = tiles.first_tile; tile < tiles.first_tile + tiles.tiles; ++tile) {
        is_here_.at(tile) = true;
    }
}

void GpuTensors::forget() { std::ranges::fill(is_here_, false); }

bool GpuTensors::have_any() const {
    return std::ranges::any_of(is_here_, [](const auto& is_here) { return is_here.load(); });
}

}  // namespace nearstep::csd
