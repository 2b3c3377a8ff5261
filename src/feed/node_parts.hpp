// Brings layers to the GPUs of a node whose ranks have their parameters in one host memory, which
// is read once for all of them. Used by the Python binding.
#pragma once

#include "feed/block_parts.hpp"
#include "feed/node_pieces.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace nearstep::feed {

// Where a rank tells the others of its node about its memory.
struct NodePlace {
    memory::Buffer notes = {};  // shared, zero at first; kNoteBytes for each rank
    int rank = 0;               // of the node's
    int ranks = 1;              // 1: they share no parameters
};
constexpr std::size_t kNoteBytes = 4096;

// Each rank copies its part of a layer from host memory, and reads the other parts in its peers'
// memory. It never waits for what a peer is to do: a peer that has the part nowhere, or whose
// memory cannot be read, is replaced by host memory. So ranks load what they like, in any order.
class NodeParts {
public:
    // `layer_bytes`: of the largest layer, the same on all ranks. Takes memory of the calling
    // thread's GPU. Not collective.
    NodeParts(NodePlace place, std::size_t layer_bytes);
    NodeParts(const NodeParts&) = delete;
    NodeParts& operator=(const NodeParts&) = delete;
    // Waits for the GPU. Memory that a peer still reads stays until the process ends.
    ~NodeParts();

    // Fills the slot with the pieces in stream order. `tag`, not 0 and below 2^48: the same on all
    // ranks for the same pieces with the same values, and for nothing else. `step`: grows, and a
    // peer that had no part in time is not waited for again in the same one. The pieces are in
    // pinned memory, in order, at most kMostPieces.
    void load(std::uint64_t tag, std::uint64_t step, std::span<std::byte> slot,
              std::span<const HostPiece> pieces, const memory::Stream& stream);

    struct Counts {
        std::uint64_t from_host_bytes = 0;
        std::uint64_t from_peers_bytes = 0;
    };
    // By the loads that the GPU has done.
    Counts counts() const;
    std::size_t gpu_bytes() const { return gpu_.size(); }

private:
    struct Note;
    struct Peer {
        memory::PeerMemory memory;
        bool is_tried = false;
    };

    Note* note_of(int rank);
    const std::byte* memory_of(int rank);
    void copy_own(std::uint64_t tag, std::span<std::byte> slot, std::span<const HostPiece> pieces,
                  const memory::Stream& stream);

    NodePlace place_;
    std::size_t entry_bytes_;
    memory::GpuBuffer gpu_;
    memory::PinnedBuffer head_;  // as the last load has left it
    std::vector<Peer> peers_;
    std::uint64_t filled_ = 0;
    std::uint64_t copied_bytes_ = 0;
};

// The parts of the pieces that are in the part of the slot.
std::vector<HostPiece> pieces_within(std::span<const HostPiece> pieces, BlockPart part);

}  // namespace nearstep::feed
