// Copies of blocks from host memory to where a network computes.
#pragma once

#include "feed/block_feed.hpp"
#include "feed/block_parts.hpp"
#include "memory/gpu.hpp"
#include "model/compute_device.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace nearstep::model {

struct CopySettings {
    // Of a block, in host memory; stays until the copy is over.
    std::function<std::span<const std::byte>(int block)> source;
    // Each for the largest block that comes there: slot_bytes() of it.
    std::vector<std::span<std::byte>> slots;
    ComputeDevice device = {};  // that the slots are on
    // Called with a stream before a copy to the GPU is handed to it, to have it wait for more.
    std::function<void(int block, const memory::Stream& copies)> before = {};
    std::size_t* copied_bytes = nullptr;  // counts; may be null
    // To a GPU on a stream of its own: who copies a part of each block, while `is_joint` says so.
    feed::JointCopy joint = {};
    const bool* is_joint = nullptr;  // null: never
};

// Readers are in the order of the default stream of the slots' device. To a GPU blocks come on a
// stream of their own, if the program was built with CUDA; else in the readers' order.
std::unique_ptr<feed::BlockCopies> make_block_copies(CopySettings settings);

}  // namespace nearstep::model
