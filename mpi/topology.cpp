// Divides ranks into groups by label or node. Used where devices and routes are planned.
#include "mpi/topology.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace nearstep::mpi {

const std::vector<int>& Topology::ranks_beside(int rank) const {
    const int group = group_of.at(static_cast<std::size_t>(rank));
    return ranks_of[static_cast<std::size_t>(group)];
}

int Topology::rank_in_group(int rank) const {
    const std::vector<int>& ranks = ranks_beside(rank);
    return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

int Topology::most_beside() const {
    std::size_t most = 0;
    for (const std::vector<int>& ranks : ranks_of) {
        most = std::max(most, ranks.size());
    }
    return static_cast<int>(most);
}

int Topology::groups_below(int rank) const {
    return static_cast<int>(
        std::ranges::count_if(ranks_of, [&](const auto& ranks) { return ranks.front() < rank; }));
}

Topology group_by(const std::vector<int>& label) {
    Topology topology;
    std::map<int, int> group_of_label;
    for (std::size_t rank = 0; rank < label.size(); ++rank) {
        const auto [found, is_new] = group_of_label.try_emplace(label[rank], topology.groups());
        if (is_new) {
            topology.ranks_of.emplace_back();
        }
        topology.group_of.push_back(found->second);
        topology.ranks_of[static_cast<std::size_t>(found->second)].push_back(
            static_cast<int>(rank));
    }
    return topology;
}

Topology discover_nodes(const Communicator& world, int ranks_per_node) {
    Topology nodes = group_by(world.first_ranks_of_nodes());
    if (ranks_per_node == 0) {
        return nodes;
    }
    std::vector<int> label;
    for (int rank = 0; rank < world.size(); ++rank) {
        const int place = nodes.rank_in_group(rank);
        // The first rank of the piece.
        label.push_back(
            nodes.ranks_beside(rank)[static_cast<std::size_t>(place - place % ranks_per_node)]);
    }
    return group_by(label);
}

Topology restrict_to(const Topology& topology, const std::vector<int>& ranks) {
    std::vector<int> label;
    label.reserve(ranks.size());
    for (const int rank : ranks) {
        label.push_back(topology.group_of[static_cast<std::size_t>(rank)]);
    }
    return group_by(label);
}

Topology set_apart_from(const Topology& topology, int rank) {
    std::vector<int> label = topology.group_of;
    std::iota(label.begin() + rank, label.end(), topology.groups());
    return group_by(label);
}

Topology each_rank_alone(int ranks) {
    std::vector<int> label(static_cast<std::size_t>(ranks));
    std::iota(label.begin(), label.end(), 0);
    return group_by(label);
}

Topology groups_of(const Topology& nodes, int ranks, int computing) {
    const bool are_cut = ranks <= nodes.most_beside();
    std::vector<int> label(nodes.group_of.size());
    std::iota(label.begin(), label.end(), 0);
    int first = 0;  // rank of the group that nodes are joined to
    int joined = ranks;
    for (int node = 0; node < nodes.groups_below(computing); ++node) {
        const std::vector<int>& beside = nodes.ranks_of[static_cast<std::size_t>(node)];
        if (joined >= ranks) {
            first = beside.front();
            joined = 0;
        }
        for (std::size_t place = 0; place < beside.size(); ++place) {
            const std::size_t piece = place - place % static_cast<std::size_t>(ranks);
            label[static_cast<std::size_t>(beside[place])] = are_cut ? beside[piece] : first;
        }
        joined += static_cast<int>(beside.size());
    }
    return group_by(label);
}

}  // namespace nearstep::mpi
