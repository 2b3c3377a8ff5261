// Shared by the scatter and the gather: the rank that stands for a node, message tags, and the
// shaped network.
#pragma once

#include "link/node_links.hpp"
#include "mpi/topology.hpp"
#include "shard/ownership.hpp"

#include <chrono>
#include <cstddef>
#include <optional>

namespace nearstep::exchange {

// Short compared with the update of a subgroup, long compared with polling the pending transfers.
constexpr std::chrono::microseconds kPollInterval{20};

// The rank that relays `owner`'s subgroups in `node`: `owner` itself in its own node; elsewhere
// owners take turns over the node's ranks.
int relay_of(const mpi::Topology& nodes, int node, int owner);

// The rank of `node` that receives a tile's payloads for all owners there; the owners take turns by
// tile. None if the node has no owner of the tile.
std::optional<int> entry_of(const shard::Ownership& owners, const mpi::Topology& nodes, int node,
                            std::size_t tile);

// MPI tag of messages with this subgroup (a position in Partition::subgroups()).
int tag_of(std::size_t subgroup);

// True once the shaped network has let `bytes` through, so that they may be sent; at once if
// `links` is null. `crossing` keeps the progress between calls: empty before the first and after
// the last.
bool has_crossed(const link::NodeLinks* links, std::size_t bytes,
                 std::optional<link::Crossing>& crossing);

}  // namespace nearstep::exchange
