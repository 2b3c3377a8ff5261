// Keeps gradients that come before their turn. Used by Step.
#include "engine/route/held_gradients.hpp"

#include "base/error.hpp"
#include "offload/gradient_assembly.hpp"

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
    if (stream_ && of.on_gpu.size() == 0) {
        of.on_gpu = memory::GpuBuffer(of.elems * sizeof(float));
    }
    if (!stream_ && !of.is_held) {
        if (!spare_.empty()) {
            of.on_host = std::move(spare_.back());
            spare_.pop_back();
        }
        of.on_host.resize(of.elems);
    }
    of.is_held = true;
    float* const values = stream_ ? of.on_gpu.as<float>() : of.on_host.data();
    of.part = {.values = values, .dtype = Dtype::fp32, .elems = of.elems};
    return {values, of.elems};
}

void HeldGradients::add(std::size_t block, std::span<const float> part) {
    expects(part.size() == blocks_.at(block).elems, "a part has every element of its block");
    if (!is_held(block)) {
        const shard::GradientPart all{part.data(), Dtype::fp32, part.size()};
        keep(block, {.parts = {&all, 1}});
        return;
    }
    const std::span<float> sum = hold(block);
    if (stream_) {
        memory::add_on_gpu(sum, sum.data(), Dtype::fp32, part.data(), Dtype::fp32, *stream_);
    } else {
        std::ranges::transform(sum, part, sum.begin(), std::plus<>());
    }
}

void HeldGradients::keep(std::size_t block, const shard::Gradient& gradient) {
    if (stream_) {
        offload::read_on_gpu(gradient, hold(block), *stream_);
    } else {
        offload::read_gradient(gradient, 0, hold(block));
    }
}

void HeldGradients::complete(std::size_t block) {
    expects(!blocks_.at(block).is_complete, "a block's gradient is put once in a step");
    blocks_[block].is_complete = true;
}

shard::Gradient HeldGradients::gradient(std::size_t block) const {
    const HeldBlock& of = blocks_[block];
    return of.is_held ? shard::Gradient{.parts = {&of.part, 1}} : shard::Gradient();
}

void HeldGradients::release() {
    --left_;
    HeldBlock& of = blocks_[left_];
    if (of.is_held && !stream_) {
        spare_.push_back(std::move(of.on_host));
    }
}

}  // namespace nearstep::engine
