// Keeps gradients that come before their turn. Used by Step.
#include "engine/route/held_gradients.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace nearstep::engine {

HeldGradients::HeldGradients(std::span<const shard::ElementRange> blocks,
                             std::optional<memory::Stream> stream)
    : stream_(std::move(stream)), blocks_(blocks.size()) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        blocks_[i].elems = blocks[i].size();
    }
}

void HeldGradients::begin_step() {
    left_ = blocks_.size();
    for (HeldBlock& block : blocks_) {
        block.is_held = false;
        block.is_complete = false;
    }
}

std::optional<std::size_t> HeldGradients::next() const {
    return left_ > 0 ? std::optional(left_ - 1) : std::nullopt;
}

std::span<float> HeldGradients::hold(std::size_t block) {
    HeldBlock& of = blocks_.at(block);
    expects(!of.is_complete, "a block's gradient is put once in a step");
    of.is_held = true;
    if (!stream_) {
        of.on_host.resize(of.elems);
        return of.on_host;
    }
    if (of.on_gpu.size() == 0) {
        of.on_gpu = memory::GpuBuffer(of.elems * sizeof(float));
    }
    return {of.on_gpu.as<float>(), of.elems};
}

void HeldGradients::add(std::size_t block, std::span<const float> part) {
    expects(part.size() == blocks_.at(block).elems, "a part has every element of its block");
    const bool is_first = !is_held(block);
    const std::span<float> sum = hold(block);
    if (stream_ && is_first) {
        memory::copy_on_gpu(std::as_writable_bytes(sum), std::as_bytes(part), *stream_);
    } else if (stream_) {
        memory::add_on_gpu(sum, sum.data(), Dtype::fp32, part.data(), Dtype::fp32, *stream_);
    } else if (is_first) {
        std::ranges::copy(part, sum.begin());
    } else {
        std::ranges::transform(sum, part, sum.begin(), std::plus<>());
    }
}

void HeldGradients::complete(std::size_t block) {
    expects(!blocks_.at(block).is_complete, "a block's gradient is put once in a step");
    blocks_[block].is_complete = true;
}

void HeldGradients::release(std::span<float> to) {
    --left_;
    HeldBlock& of = blocks_[left_];
    if (!of.is_held) {
        return;
    }
    if (stream_) {
        memory::copy_on_gpu(std::as_writable_bytes(to), of.on_gpu.span(), *stream_);
    } else {
        std::ranges::copy(of.on_host, to.begin());
    }
}

}  // namespace nearstep::engine
