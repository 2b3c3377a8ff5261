// What the scatter and both gathers share: which rank stands for a node, how a subgroup's messages
// are told apart, and the way out of a node.
#pragma once

#include "link/node_links.hpp"
#include "mpi/topology.hpp"
#include "shard/ownership.hpp"

#include <chrono>
#include <cstddef>
#include <optional>

namespace nearstep::exchange {

// Short against the update of a subgroup, long against a look at the pending transfers.
constexpr std::chrono::microseconds kPollInterval{20};

// The rank of `node` that stands for `owner`: the owner itself in its own node; elsewhere owners
// take turns over the node's ranks.
int relay_of(const mpi::Topology& nodes, int node, int owner);

// The rank of `node` that takes a tile's payloads for all owners of the tile there, who take turns
// by tile; none if the node has no owner of it.
std::optional<int> entry_of(const shard::Ownership& owners, const mpi::Topology& nodes, int node,
                            std::size_t tile);

// Of the messages with a subgroup (a position in Partition::subgroups()).
int tag_of(std::size_t subgroup);

// True once the network has let `bytes` through, which then may be sent; at once where it is not
// shaped (null). `crossing`: what keeps its way from call to call, empty before the first one and
// after the last.
bool has_crossed(const link::NodeLinks* links, std::size_t bytes,
                 std::optional<link::Crossing>& crossing);

}  // namespace nearstep::exchange
