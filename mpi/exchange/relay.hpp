// By which rank a subgroup enters a node.
#pragma once

#include "mpi/topology.hpp"

#include <vector>

namespace nearstep::exchange {

// The owner itself in its own node; elsewhere owners take turns over the node's ranks.
inline int relay_of(const mpi::Topology& nodes, int node, int owner) {
    if (nodes.group_of[static_cast<std::size_t>(owner)] == node) {
        return owner;
    }
    const std::vector<int>& ranks = nodes.ranks_of[static_cast<std::size_t>(node)];
    return ranks[static_cast<std::size_t>(owner) % ranks.size()];
}

}  // namespace nearstep::exchange
