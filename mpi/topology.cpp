#include "mpi/topology.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace nearstep::mpi {

int Topology::rank_in_group(int rank) const {
    const int group = group_of.at(static_cast<std::size_t>(rank));
    const std::vector<int>& ranks = ranks_of[static_cast<std::size_t>(group)];
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
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

Topology discover_nodes(const Communicator& world) {
    return group_by(world.first_ranks_of_nodes());
}

Topology each_rank_alone(int ranks) {
    std::vector<int> label(static_cast<std::size_t>(ranks));
    std::iota(label.begin(), label.end(), 0);
    return group_by(label);
}

}  // namespace nearstep::mpi
