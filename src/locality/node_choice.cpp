// Spreads the ranks of a host over its NUMA nodes. Used when the devices of a rank are made.
#include "locality/node_choice.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace nearstep::locality {

std::vector<int> choose_nodes(const std::vector<std::vector<double>>& moved,
                              const std::vector<std::vector<double>>& distances) {
    const std::size_t ranks = moved.size();
    const std::size_t nodes = distances.size();
    if (ranks < nodes) {
        return {};
    }
    const auto all = [&](std::size_t rank) {
        return std::accumulate(moved[rank].begin(), moved[rank].end(), 0.0);
    };
    std::vector<std::size_t> order(ranks);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(
        order, [&](std::size_t one, std::size_t other) { return all(one) > all(other); });
    std::vector<std::size_t> taken(nodes, 0);
    std::size_t fuller = 0;  // nodes that have one rank more than others must
    std::vector<int> chosen(ranks, 0);
    for (const std::size_t rank : order) {
        const std::size_t usual = rank * nodes / ranks;
        std::pair<double, bool> least;
        std::size_t best = nodes;
        for (std::size_t node = 0; node < nodes; ++node) {
            const bool is_open = taken[node] < ranks / nodes ||
                                 (taken[node] == ranks / nodes && fuller < ranks % nodes);
            const std::pair cost{std::inner_product(moved[rank].begin(), moved[rank].end(),
                                                    distances[node].begin(), 0.0),
                                 node != usual};
            if (is_open && (best == nodes || cost < least)) {
                least = cost;
                best = node;
            }
        }
        fuller += ++taken[best] > ranks / nodes ? 1 : 0;
        chosen[rank] = static_cast<int>(best);
    }
    return chosen;
}

}  // namespace nearstep::locality
