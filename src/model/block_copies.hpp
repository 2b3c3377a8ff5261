// Copies blocks from host memory to the device on which a network computes.
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
    // The block's bytes in host memory, valid until the copy is done.
    std::function<std::span<const std::byte>(int block)> source;
    // Each slot has slot_bytes() of the largest block that it will hold.
    std::vector<std::span<std::byte>> slots;
    ComputeDevice device = {};  // holds the slots
    // Called before a copy is enqueued on the stream `copies`, so that it can add waits.
    std::function<void(int block, const memory::Stream& copies)> before = {};
    std::size_t* copied_bytes = nullptr;  // counter; may be null
    // The ranks that each copy a part of every block to the GPUs while `is_joint` is true.
    feed::JointCopy joint = {};
    const bool* is_joint = nullptr;  // null: never
};

// Readers run on the default stream of the slots' device. Copies to a GPU run on their own stream
// if the program was built with CUDA, otherwise in the readers' order.
std::unique_ptr<feed::BlockCopies> make_block_copies(CopySettings settings);

}  // namespace nearstep::model
