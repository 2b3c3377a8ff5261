// Computes who sends which slice of the gradient where. Used by the gradient scatter and by
// offload's step, which makes a route per round and per block.
#include "mpi/exchange/routes.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace nearstep::exchange {

namespace {

// The rank of the group that receives a tile's payloads for all owners there; the owners take turns
// by tile. None if the group has no owner of the tile.
std::optional<int> entry_of(const shard::Ownership& owners, const mpi::Topology& topology,
                            int group, std::size_t tile) {
    const std::vector<int> there =
        owners.owners_among(topology.ranks_of[static_cast<std::size_t>(group)], tile);
    return there.empty() ? std::nullopt : std::optional(there[tile % there.size()]);
}

std::uint32_t number(std::size_t value) { return static_cast<std::uint32_t>(value); }

}  // namespace

int relay_of(const mpi::Topology& nodes, int node, int owner) {
    if (nodes.group_of[static_cast<std::size_t>(owner)] == node) {
        return owner;
    }
    const std::vector<int>& ranks = nodes.ranks_of[static_cast<std::size_t>(node)];
    const int home = nodes.group_of[static_cast<std::size_t>(owner)];
    return ranks[static_cast<std::size_t>(owner + home) % ranks.size()];
}

bool have_copies_met(const shard::Ownership& owners, const mpi::Topology& nodes) {
    return std::ranges::any_of(nodes.ranks_of, [&](const std::vector<int>& ranks) {
        return std::ranges::any_of(
            ranks, [&](int rank) { return owners.copy_of(rank) != owners.copy_of(ranks.front()); });
    });
}

ByRank::ByRank(int ranks, std::vector<Item> items) : firsts_(static_cast<std::size_t>(ranks) + 1) {
    std::ranges::stable_sort(items, {}, &Item::rank);
    for (const Item& item : items) {
        expects(item.rank >= 0 && item.rank < ranks, "each number is for one of the ranks");
        ++firsts_[static_cast<std::size_t>(item.rank) + 1];
        order_.push_back(item.number);
    }
    std::partial_sum(firsts_.begin(), firsts_.end(), firsts_.begin());
}

mpi::Blocks ByRank::blocks(std::size_t bytes) const {
    mpi::Blocks blocks;
    for (std::size_t rank = 0; rank + 1 < firsts_.size(); ++rank) {
        blocks.bytes.push_back((firsts_[rank + 1] - firsts_[rank]) * bytes);
    }
    return blocks;
}

Routes::Routes(const shard::Ownership& owners, mpi::Topology groups, mpi::Topology nodes, int rank,
               int storage_ranks)
    : owners_(owners),
      groups_(std::move(groups)),
      nodes_(std::move(nodes)),
      rank_(rank),
      group_(groups_.group_of[static_cast<std::size_t>(rank)]),
      node_(node_of(rank)),
      sources_(groups_.groups_below(static_cast<int>(groups_.group_of.size()) - storage_ranks)),
      passes_on_(have_copies_met(owners, nodes_)) {
    const int computing = static_cast<int>(groups_.group_of.size()) - storage_ranks;
    expects(std::ranges::none_of(groups_.ranks_of,
                                 [&](const std::vector<int>& ranks) {
                                     return ranks.front() < computing && ranks.back() >= computing;
                                 }),
            "ranks without gradients have groups of their own");
}

int Routes::slicer(int group, std::size_t tile) const {
    const std::optional<int> owner = entry_of(owners_, groups_, group, tile);
    if (owner) {
        return *owner;
    }
    // Owners without gradients may be few, so there the group's ranks take turns by tile.
    const int elsewhere = owners_.copy(0).owner_of_tile(tile);
    const std::vector<int>& ranks = groups_.ranks_of[static_cast<std::size_t>(group)];
    const bool is_source = groups_.group_of[static_cast<std::size_t>(elsewhere)] < sources_;
    return is_source ? relay_of(groups_, group, elsewhere) : ranks[tile % ranks.size()];
}

Route Routes::of(shard::TileRange tiles) const {
    Route route;
    route.tiles = tiles;
    add_sent(route);
    add_received(route);
    return route;
}

void Routes::add_sent(Route& route) const {
    std::vector<ByRank::Item> slices;
    std::vector<ByRank::Item> sent;
    const std::size_t end = group_ < sources_ ? route.tiles.end : route.tiles.begin;
    for (std::size_t tile = route.tiles.begin; tile < end; ++tile) {
        const int by = slicer(group_, tile);
        slices.push_back({groups_.rank_in_group(by), number(tile - route.tiles.begin)});
        if (by != rank_) {
            continue;
        }
        for (int copy = 0; copy < owners_.copies(); ++copy) {
            const int owner = owners_.copy(copy).owner_of_tile(tile);
            if (entry_of(owners_, nodes_, node_of(owner), tile) == owner) {
                sent.push_back({owner, number(route.sliced.size())});
            }
        }
        route.sliced.push_back(tile);
    }
    route.slices = ByRank(static_cast<int>(groups_.ranks_beside(rank_).size()), std::move(slices));
    route.sent = ByRank(static_cast<int>(nodes_.group_of.size()), std::move(sent));
}

void Routes::add_received(Route& route) const {
    const auto sources = static_cast<std::size_t>(this->sources());
    const int beside = static_cast<int>(nodes_.ranks_beside(rank_).size());
    std::vector<ByRank::Item> received;
    std::vector<ByRank::Item> passed;
    std::vector<ByRank::Item> passed_here;
    for (std::size_t tile = route.tiles.begin; tile < route.tiles.end; ++tile) {
        if (!owners_.owns(rank_, tile)) {
            continue;
        }
        const std::size_t owned = route.owned.size();
        const int entry = *entry_of(owners_, nodes_, node_, tile);
        route.owned.push_back({.tile = tile, .is_passed_on = entry != rank_});
        if (entry != rank_) {
            passed_here.push_back({nodes_.rank_in_group(entry), number(owned)});
            continue;
        }
        for (std::size_t group = 0; group < sources; ++group) {
            received.push_back(
                {slicer(static_cast<int>(group), tile), number(owned * sources + group)});
        }
        for (const int owner : owners_.owners_among(nodes_.ranks_beside(rank_), tile)) {
            if (owner != rank_) {
                passed.push_back({nodes_.rank_in_group(owner), number(owned)});
            }
        }
    }
    route.received = ByRank(static_cast<int>(nodes_.group_of.size()), std::move(received));
    route.passed = ByRank(beside, std::move(passed));
    route.passed_here = ByRank(beside, std::move(passed_here));
    route.places.resize(route.owned.size() * sources);
    for (std::size_t at = 0; at < route.received.size(); ++at) {
        route.places[route.received.order()[at]] = number(at);
    }
    for (std::size_t at = 0; at < route.passed_here.size(); ++at) {
        for (std::size_t group = 0; group < sources; ++group) {
            route.places[route.passed_here.order()[at] * sources + group] =
                number(at * sources + group);
        }
    }
}

}  // namespace nearstep::exchange
