// Which ranks form a group: the ranks of a node, or each rank by itself.
#pragma once

#include "mpi/communicator.hpp"

#include <vector>

namespace nearstep::mpi {

struct Topology {
    std::vector<int> group_of;               // per rank
    std::vector<std::vector<int>> ranks_of;  // per group, ascending

    // Of the rank's group, itself among them.
    const std::vector<int>& ranks_beside(int rank) const;

    // Position of the rank among those of its group.
    int rank_in_group(int rank) const;

    int groups() const { return static_cast<int>(ranks_of.size()); }
};

// Groups numbered in the order of their first rank. label[r]: any number that a group's ranks
// share.
Topology group_by(const std::vector<int>& label);

// Groups are the nodes (ranks that share memory); with `ranks_per_node` > 0 each is cut into pieces
// of so many ranks, which then count as nodes. Collective.
Topology discover_nodes(const Communicator& world, int ranks_per_node = 0);

// The ranks of `ranks` alone, ascending, numbered by their positions there; groups without any are
// left out.
Topology restrict_to(const Topology& topology, const std::vector<int>& ranks);

// Every rank is a group of its own.
Topology each_rank_alone(int ranks);

}  // namespace nearstep::mpi
