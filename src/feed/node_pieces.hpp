// The structures that pass from the host's code of NodeParts to the GPU's. Included by
// node_parts.hpp and gpu_node_parts.cu.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nearstep::feed {

// Bytes of host memory that belong at `at` in a slot; addresses are multiples of 2.
struct HostPiece {
    std::uint64_t at = 0;
    std::uint64_t host = 0;  // address
    std::uint64_t bytes = 0;
};

// A kernel takes them as an argument, of which there may be 4 KiB.
constexpr std::size_t kMostPieces = 128;
struct HostPieces {
    HostPiece piece[kMostPieces];  // NOLINT: the GPU's code has no std::array
    std::uint32_t count = 0;
};

// The last parts that a rank has copied from host memory, for its peers. A mark says which part an
// entry has: the layer's tag and how often the entry was filled. It is 0 while the entry is
// written.
constexpr unsigned kEntries = 3;
constexpr unsigned kCountBits = 16;

// How a rank gets a peer's part of a layer: bytes [begin, end) of the slot.
struct PartFetch {
    unsigned char* slot;
    const unsigned char* entries;  // the peer's
    const std::uint64_t* marks;
    std::uint64_t entry_bytes;
    std::uint64_t begin;
    std::uint64_t end;
    std::uint64_t tag;
    std::uint64_t step;
    std::uint64_t patience_ns;
    std::uint64_t* missed;  // the last step in which the peer did not have a part in time
    unsigned long long* from_host_bytes;  // so far
    unsigned long long* from_peers_bytes;
};

}  // namespace nearstep::feed
