// Cuts blocks' gradients into whole tiles. Used by step_pipeline.cpp and gpu_gradients.cpp.
#include "offload/gradient_assembly.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "codec/codec_kernels.hpp"

#include <algorithm>

namespace nearstep::offload {

using shard::GradientPart;
using shard::kTileElems;

shard::TileRange complete_tiles(ElementRange block) {
    return {shard::tiles_of(block.begin), shard::tiles_of(block.end)};
}

void read_gradient(const shard::Gradient& gradient, std::size_t first, std::span<float> values) {
    const codec::Kernels kernels = codec::best_kernels();
    for (const GradientPart& part : gradient.parts) {
        const std::size_t begin = std::min(first, part.elems);
        const std::span<float> to = values.first(std::min(part.elems - begin, values.size()));
        first -= begin;
        values = values.subspan(to.size());
        if (part.values == nullptr) {
            std::ranges::fill(to, 0.0F);
            continue;
        }
        const auto* const from = static_cast<const std::byte*>(part.values);
        kernels.widen(part.dtype, from + begin * size_bytes(part.dtype), to.data(), to.size());
        if (gradient.factor != 1) {
            std::ranges::transform(to, to.begin(), [&](float g) { return gradient.factor * g; });
        }
    }
    expects(values.empty(), "a gradient has every element of its block");
}

void read_on_gpu(const shard::Gradient& gradient, std::span<float> values,
                 const memory::Stream& stream) {
    for (const GradientPart& part : gradient.parts) {
        expects(part.elems <= values.size(), "a gradient has no more elements than its block");
        const std::span<float> to = values.first(part.elems);
        values = values.subspan(part.elems);
        if (part.values == nullptr) {
            memory::fill_with_zeros(std::as_writable_bytes(to), stream);
        } else {
            memory::convert_on_gpu(to, part.values, part.dtype, gradient.factor, stream);
        }
    }
    expects(values.empty(), "a gradient has every element of its block");
}

GradientAssembly::GradientAssembly(std::span<const ElementRange> blocks) : carried_(kTileElems) {
    for (const ElementRange block : blocks) {
        expects(block.begin == elems_, "the blocks are adjacent and in forward order");
        elems_ = block.end;
    }
}

void GradientAssembly::take(ElementRange block, const shard::Gradient& gradient) {
    std::size_t elems = 0;
    for (const GradientPart& part : gradient.parts) {
        elems += part.elems;
    }
    expects(elems == block.size(), "a gradient has each element of its block once");
    if (block.end == elems_) {  // after the last block: padding of the last tile
        carried_elems_ = round_up(elems_, kTileElems) - elems_;
        std::fill_n(carried_.begin(), carried_elems_, 0.0F);
    }
    block_ = block;
    gradient_ = gradient;
}

void GradientAssembly::read(std::size_t tile, std::span<float> values) const {
    const std::size_t begin = tile * kTileElems;
    const std::size_t own = std::min(block_.end - begin, kTileElems);
    read_gradient(gradient_, begin - block_.begin, values.first(own));
    std::copy_n(carried_.begin(), kTileElems - own, values.subspan(own).begin());
}

void GradientAssembly::carry() {
    const shard::TileRange complete = complete_tiles(block_);
    const bool is_inside = complete.size() == 0;  // of one tile: then all of it is carried
    const std::size_t own = is_inside ? block_.size() : complete.begin * kTileElems - block_.begin;
    const std::size_t later = is_inside ? carried_elems_ : 0;
    std::copy_backward(carried_.begin(), carried_.begin() + static_cast<std::ptrdiff_t>(later),
                       carried_.begin() + static_cast<std::ptrdiff_t>(own + later));
    read_gradient(gradient_, 0, std::span(carried_).first(own));
    carried_elems_ = own + later;
    gradient_ = {};
}

}  // namespace nearstep::offload
