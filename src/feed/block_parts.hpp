// How several ranks, each with a GPU, bring the same block to all of them: each copies a part from
// host memory, and the rest comes from the others. Pure arithmetic but for JointCopy.
#pragma once

#include "memory/gpu.hpp"

#include <cstddef>
#include <functional>
#include <span>

namespace nearstep::feed {

// Bytes of the largest sizes that torch and its kernels could ask for an address to be a multiple
// of: so that results do not depend on which slot a block is in.
constexpr std::size_t kSlotAlignment = 512;

// Bytes [begin, end) of a block.
struct BlockPart {
    std::size_t begin = 0;
    std::size_t end = 0;

    std::size_t size() const { return end - begin; }
};

// What a slot has to hold: as many bytes of each rank, aligned; those behind the block are
// anything.
std::size_t slot_bytes(std::size_t block_bytes, int ranks);

// What the rank copies: all parts are slot_bytes() / ranks but for the last ones, which end with
// the block.
BlockPart part_of_block(std::size_t block_bytes, int rank, int ranks);

// Of this rank and those that bring blocks with it.
struct JointCopy {
    int rank = 0;
    int ranks = 1;  // 1: this one alone, and nothing is gathered
    // all = everyone's `mine`, which is this rank's part of `all`, in the order of the stream.
    // Collective: all ranks call it for the same blocks in the same order.
    std::function<void(std::span<const std::byte> mine, std::span<std::byte> all,
                       const memory::Stream& stream)>
        gather = {};
};

}  // namespace nearstep::feed
