// Groups of ranks: the ranks of a node, or each rank alone.
#pragma once

#include "mpi/communicator.hpp"

#include <vector>

namespace nearstep::mpi {

struct Topology {
    std::vector<int> group_of;               // per rank
    std::vector<std::vector<int>> ranks_of;  // per group, ascending

    // The ranks of the rank's group, itself included.
    const std::vector<int>& ranks_beside(int rank) const;

    // Position of the rank in its group.
    int rank_in_group(int rank) const;

    int groups() const { return static_cast<int>(ranks_of.size()); }

    // The ranks of the largest group.
    int most_beside() const;

    // How many groups have a rank below `rank`; they are numbered before all others.
    int groups_below(int rank) const;
};

// Ranks with the same label form a group. Groups are numbered in the order of their first rank.
Topology group_by(const std::vector<int>& label);

// Groups are the nodes (ranks that share memory). If `ranks_per_node` > 0, each node is cut into
// pieces of that many ranks, which then count as nodes. Collective.
Topology discover_nodes(const Communicator& world, int ranks_per_node = 0);

// Keeps only `ranks` (ascending) and renumbers them by their positions there. Drops empty groups.
Topology restrict_to(const Topology& topology, const std::vector<int>& ranks);

// Returns the groups of `topology` without the ranks from `rank` on. Each of those ranks forms a
// group of its own.
Topology set_apart_from(const Topology& topology, int rank);

Topology each_rank_alone(int ranks);

// Groups of `ranks` ranks each out of the first `computing`: nodes are cut into pieces of that
// many, or whole nodes are joined, in their order, until they have as many. Each other rank forms
// one of its own.
Topology groups_of(const Topology& nodes, int ranks, int computing);

}  // namespace nearstep::mpi
