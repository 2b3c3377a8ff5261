// Keeps the inputs of blocks for their backward. Used by network.cpp.
#include "model/block_inputs.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "model/block_copies.hpp"
#include "model/torch_types.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace nearstep::model {

namespace {

// The next block's inputs are fetched while the current block's are read.
constexpr int kSlots = 2;

}  // namespace

BlockInputs::BlockInputs(int blocks, Dtype format, const ComputeDevice& device, InputPlace place)
    : format_(format),
      device_(device),
      place_(place),
      has_streams_(place == InputPlace::on_host && device.is_gpu() && memory::gpus() > 0),
      blocks_(static_cast<std::size_t>(blocks)) {
    if (has_streams_) {
        out_.emplace();
        is_made_.emplace();
    }
}

BlockInputs::~BlockInputs() = default;

bool BlockInputs::moves(int block) const {
    return place_ == InputPlace::on_host && block > 0 &&
           block + 1 < static_cast<int>(blocks_.size());
}

void BlockInputs::begin(std::span<const std::size_t> bytes) {
    micro_batches_.clear();
    bytes_ = 0;
    for (const std::size_t size : bytes) {
        micro_batches_.push_back({.bytes = size, .offset = bytes_});
        bytes_ += round_up(size, feed::kSlotAlignment);
    }
    for (OfBlock& block : blocks_) {
        block.inputs.assign(bytes.size(), at::Tensor());
    }
    if (place_ == InputPlace::on_host && bytes_ > room_bytes_) {
        make_room();
    }
}

void BlockInputs::make_room() {
    room_bytes_ = bytes_;
    const int blocks = static_cast<int>(blocks_.size());
    for (int block = 0; block < blocks; ++block) {
        if (moves(block) && has_streams_) {
            of(block).pinned = memory::PinnedBuffer(room_bytes_);
            of(block).is_out.emplace();
        } else if (moves(block)) {
            of(block).unpinned = memory::Buffer(room_bytes_);
        }
    }
    feed_.reset();
    copies_.reset();
    slots_.clear();
    std::vector<std::span<std::byte>> rooms;
    for (int slot = 0; slot < kSlots; ++slot) {
        slots_.push_back(at::empty({static_cast<std::int64_t>(room_bytes_)},
                                   at::TensorOptions(at::kByte).device(torch_device(device_))));
        rooms.emplace_back(static_cast<std::byte*>(slots_.back().mutable_data_ptr()), room_bytes_);
    }
    copies_ = make_block_copies(
        {.source = [this](int block) { return on_host(block); },
         .slots = std::move(rooms),
         .device = device_,
         .before = [this](int block,
                          const memory::Stream& copies) { copies.wait_for(*of(block).is_out); },
         .copied_bytes = &moved_bytes_});
    feed_.emplace(*copies_, blocks, kSlots);
}

std::span<std::byte> BlockInputs::on_host(int block) {
    return (has_streams_ ? of(block).pinned.span() : of(block).unpinned.span()).first(bytes_);
}

void BlockInputs::put(int block, std::size_t micro_batch, const at::Tensor& input) {
    of(block).inputs.at(micro_batch) = input;
    if (moves(block)) {
        take_out(block, micro_batch, input);
    }
}

void BlockInputs::take_out(int block, std::size_t micro_batch, const at::Tensor& input) {
    MicroBatchInput& facts = micro_batches_.at(micro_batch);
    expects(input.is_contiguous() && input.nbytes() == facts.bytes &&
                input.scalar_type() == scalar_type(format_),
            "an input has the bytes that the step began with");
    facts.shape = input.sizes().vec();
    const std::span<std::byte> host = on_host(block).subspan(facts.offset, facts.bytes);
    moved_bytes_ += facts.bytes;
    if (has_streams_) {
        is_made_->record(memory::Stream::of_default());
        out_->wait_for(*is_made_);
        copy_to_host(host, {static_cast<const std::byte*>(input.const_data_ptr()), facts.bytes},
                     *out_);
        of(block).is_out->record(*out_);
        return;
    }
    at::from_blob(host.data(), facts.shape, at::TensorOptions(input.scalar_type())).copy_(input);
}

at::Tensor BlockInputs::get(int block, std::size_t micro_batch) const {
    const at::Tensor& input = of(block).inputs.at(micro_batch);
    if (input.defined()) {
        return input;
    }
    const MicroBatchInput& facts = micro_batches_.at(micro_batch);
    expects(feed_.has_value() && moves(block), "an input that is asked for was put");
    return slots_.at(static_cast<std::size_t>(feed_->slot_of(block)))
        .narrow(0, static_cast<std::int64_t>(facts.offset), static_cast<std::int64_t>(facts.bytes))
        .view(scalar_type(format_))
        .view(facts.shape);
}

at::Tensor BlockInputs::take(int block, std::size_t micro_batch) {
    at::Tensor input = get(block, micro_batch);
    of(block).inputs.at(micro_batch) = at::Tensor();
    return input;
}

void BlockInputs::end_forward(int block) {
    if (moves(block)) {
        // Later work may reuse the inputs' memory, so it must wait for the copies.
        if (has_streams_ && !of(block).inputs.empty()) {
            memory::Stream::of_default().wait_for(*of(block).is_out);
        }
        std::ranges::fill(of(block).inputs, at::Tensor());
    }
    if (feed_ && block + 2 == static_cast<int>(blocks_.size())) {
        bring_back();
    }
}

void BlockInputs::bring_back() {
    std::vector<feed::Visit> visits;
    for (int block = static_cast<int>(blocks_.size()) - 2; block > 0; --block) {
        visits.push_back({block});
    }
    feed_->begin(std::move(visits));
    feed_->allow_all();
}

void BlockInputs::begin_backward(int block) {
    if (feed_ && moves(block)) {
        feed_->enter();
    }
}

void BlockInputs::end_backward(int block) {
    if (feed_ && moves(block)) {
        feed_->leave();
    }
}

}  // namespace nearstep::model
