#include "mpi/exchange/relay.hpp"

#include <thread>
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

void cross_network(const link::NodeLinks* links, std::size_t bytes,
                   const std::function<void()>& make_progress) {
    if (links == nullptr) {
        return;
    }
    const link::Clock& clock = links->clock();
    link::Crossing crossing(links->network(), clock.now(), bytes);
    while (!crossing.is_over(clock.now())) {
        make_progress();
        std::this_thread::sleep_for(kPollInterval);
    }
}

}  // namespace nearstep::exchange
