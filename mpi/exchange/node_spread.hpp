// Passes gradient payloads on to all of a node's owners if it has several copies of the state.
#pragma once

#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "shard/ownership.hpp"
#include "trace/traffic.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::exchange {

// The payloads of a tile in group order.
struct TilePayloads {
    std::size_t tile = 0;
    std::vector<std::span<const std::byte>> payloads;
};

// One per rank; collective.
class NodeSpread {
public:
    // `rounds`: as in GradientScatter. `most_bytes`: largest sum of a tile's payloads. Buffers are
    // allocated here. `owners` outlives this.
    NodeSpread(const mpi::Communicator& world, const shard::Ownership& owners,
               const mpi::Topology& nodes, std::span<const shard::TileRange> rounds,
               std::size_t most_bytes, trace::Traffic& traffic);

    // `here`: the payloads of `tiles` that this rank received for its node. Returns the payloads of
    // all tiles that this rank owns, in any order: per tile `sources` payloads of `payload_bytes`.
    // Valid until the next call, while the payloads of `here` are.
    std::vector<TilePayloads> pass_on(shard::TileRange tiles, std::vector<TilePayloads> here,
                                      std::size_t sources, std::size_t payload_bytes);

    // Most bytes that one call sends or receives on this rank.
    std::size_t message_bytes() const { return std::max(out_.size(), in_.size()); }

private:
    // The tiles that rank `from` passes on to rank `to` of this node.
    std::vector<std::size_t> passed(shard::TileRange tiles, int from, int to) const;

    const shard::Ownership& owners_;
    mpi::Topology nodes_;
    trace::Traffic& traffic_;
    int rank_;
    int node_;
    bool is_needed_;  // the same on all ranks
    mpi::Communicator node_ranks_;
    std::vector<std::byte> out_;
    std::vector<std::byte> in_;
};

}  // namespace nearstep::exchange
