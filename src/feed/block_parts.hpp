// How several ranks, each with a GPU, fetch the same block: each copies a part from host memory and
// gathers the rest from the others. Pure arithmetic except JointCopy.
#pragma once

#include "memory/gpu.hpp"

#include <cstddef>
#include <functional>
#include <span>

namespace nearstep::feed {

// Alignment of slots in bytes: the largest that torch and its kernels may check, so that results do
// not depend on a block's slot.
constexpr std::size_t kSlotAlignment = 512;

// Bytes [begin, end) of a block.
struct BlockPart {
    std::size_t begin = 0;
    std::size_t end = 0;

    std::size_t size() const { return end - begin; }
};

// Bytes of a slot: an equal, aligned number for each rank. Bytes behind the block are undefined.
std::size_t slot_bytes(std::size_t block_bytes, int ranks);

// The part that the rank copies: slot_bytes() / ranks bytes; the last parts end with the block.
BlockPart part_of_block(std::size_t block_bytes, int rank, int ranks);

// How this rank shares its fetches with others.
struct JointCopy {
    int rank = 0;
    int ranks = 1;  // 1: nothing is gathered
    // all = every rank's `mine`, in stream order; `mine` is this rank's part of `all`. Collective:
    // all ranks call it for the same blocks in the same order.
    std::function<void(std::span<const std::byte> mine, std::span<std::byte> all,
                       const memory::Stream& stream)>
        gather = {};
};

}  // namespace nearstep::feed
