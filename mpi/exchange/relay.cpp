#include "mpi/exchange/relay.hpp"

#include <vector>

namespace nearstep::exchange {

int relay_of(const mpi::Topology& nodes, int node, int owner) {
    if (nodes.group_of[static_cast<std::size_t>(owner)] == node) {
        return owner;
    }
    const std::vector<int>& ranks = nodes.ranks_of[static_cast<std::size_t>(node)];
    return ranks[static_cast<std::size_t>(owner) % ranks.size()];
}

std::optional<int> entry_of(const shard::Ownership& owners, const mpi::Topology& nodes, int node,
                            std::size_t tile) {
    const std::vector<int> there =
        owners.owners_among(nodes.ranks_of[static_cast<std::size_t>(node)], tile);
    return there.empty() ? std::nullopt : std::optional(there[tile % there.size()]);
}

int tag_of(std::size_t subgroup) {
    return static_cast<int>(subgroup % 32768);  // MPI promises tags up to 32767
}

bool has_crossed(const link::NodeLinks* links, std::size_t bytes,
                 std::optional<link::Crossing>& crossing) {
    if (links == nullptr) {
        return true;
    }
    const link::Time now = links->clock().now();
    if (!crossing) {
        crossing.emplace(links->network(), now, bytes);
    }
    if (!crossing->is_over(now)) {
        return false;
    }
    crossing.reset();
    return true;
}

}  // namespace nearstep::exchange
