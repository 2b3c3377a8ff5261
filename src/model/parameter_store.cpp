// Brings blocks of parameters to the network's device. Used by network.cpp.
#include "model/parameter_store.hpp"

#include "model/block_copies.hpp"
#include "model/torch_types.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace nearstep::model {

ParameterStore::ParameterStore(const Geometry& geometry, std::span<const std::byte> parameters,
                               Dtype dtype, const ComputeDevice& device, int slots,
                               const feed::JointCopy& joint)
    : geometry_(geometry), parameters_(parameters), dtype_(dtype), has_company_(joint.ranks > 1) {
    if (slots == 0 && !device.is_gpu()) {
        return;
    }
    const int blocks = static_cast<int>(geometry.blocks.size());
    const int used = slots == 0 ? blocks : std::min(slots, blocks);
    make_slots(device, used, joint.ranks);
    std::vector<std::span<std::byte>> rooms;
    for (const at::Tensor& slot : slots_) {
        rooms.emplace_back(static_cast<std::byte*>(slot.mutable_data_ptr()), slot.nbytes());
    }
    copies_ = make_block_copies({.source = [this](int block) { return bytes_of(block); },
                                 .slots = std::move(rooms),
                                 .device = device,
                                 .before = {},
                                 .copied_bytes = &brought_bytes_,
                                 .joint = joint,
                                 .is_joint = &is_together_});
    feed_.emplace(*copies_, blocks, used);
}

ParameterStore::~ParameterStore() = default;

// If every block has its own slot, each slot has its block's size; see order_fetches().
void ParameterStore::make_slots(const ComputeDevice& device, int slots, int ranks) {
    std::vector<std::int64_t> sizes;
    sizes.reserve(geometry_.blocks.size());
    for (int block = 0; block < static_cast<int>(geometry_.blocks.size()); ++block) {
        sizes.push_back(static_cast<std::int64_t>(feed::slot_bytes(bytes_of(block).size(), ranks)));
    }
    if (slots < static_cast<int>(sizes.size())) {
        sizes.assign(static_cast<std::size_t>(slots), std::ranges::max(sizes));
    }
    std::int64_t all = 0;
    for (const std::int64_t size : sizes) {
        all += size;
    }
    const at::Tensor memory =
        at::empty({all}, at::TensorOptions(at::kByte).device(torch_device(device)));
    std::int64_t first = 0;
    for (const std::int64_t size : sizes) {
        slots_.push_back(memory.narrow(0, std::exchange(first, first + size), size));
    }
}

std::span<const std::byte> ParameterStore::bytes_of(int block) const {
    const Block& range = geometry_.blocks.at(static_cast<std::size_t>(block));
    const std::size_t size = size_bytes(dtype_);
    return parameters_.subspan(range.begin * size, (range.end - range.begin) * size);
}

void ParameterStore::begin(std::vector<feed::Visit> visits, Bringing bringing) {
    is_together_ = has_company_ && bringing == Bringing::together;
    if (feed_) {
        feed_->begin(std::move(visits));
    }
}

void ParameterStore::allow(int block) {
    if (feed_) {
        feed_->allow(block);
    }
}

void ParameterStore::allow_all() {
    if (feed_) {
        feed_->allow_all();
    }
}

void ParameterStore::enter() {
    if (feed_) {
        feed_->enter();
    }
}

void ParameterStore::leave() {
    if (feed_) {
        feed_->leave();
    }
}

at::Tensor ParameterStore::elems(int block) const {
    const std::span<const std::byte> bytes = bytes_of(block);
    if (feed_) {
        return slots_.at(static_cast<std::size_t>(feed_->slot_of(block)))
            .narrow(0, 0, static_cast<std::int64_t>(bytes.size()))
            .view(scalar_type(dtype_));
    }
    return at::from_blob(const_cast<std::byte*>(bytes.data()),
                         {static_cast<std::int64_t>(bytes.size() / size_bytes(dtype_))},
                         at::TensorOptions(scalar_type(dtype_)));
}

}  // namespace nearstep::model
