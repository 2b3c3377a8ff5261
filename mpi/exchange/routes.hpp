// Computes who sends which slice of the gradient to whom, once per layout, for hosts and GPUs
// alike. Pure arithmetic, from which both sides of a message know its size
// and order.
//
// Ranks form groups. Inside a group, each tile has a slicer: the rank that adds up the group's
// gradients and encodes the sum. Its payload goes once to every node with an owner of the tile, to
// the node's entry for it, and from there to the node's other owners. There are several if the
// state has several copies; the entry is one of them.
#pragma once

#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "shard/ownership.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::exchange {

// The rank that relays `owner`'s subgroups in `node`: `owner` itself in its own node; elsewhere
// the owners of a node take turns over the node's ranks, and so do neighbouring nodes' first ones.
int relay_of(const mpi::Topology& nodes, int node, int owner);

// Whether ranks of some node belong to different copies of the state.
bool have_copies_met(const shard::Ownership& owners, const mpi::Topology& nodes);

// Numbers sorted by the rank that each is for; those for one rank keep their order.
class ByRank {
public:
    struct Item {
        int rank = 0;
        std::uint32_t number = 0;
    };

    ByRank() = default;
    // `items`: for ranks below `ranks`.
    ByRank(int ranks, std::vector<Item> items);

    const std::vector<std::uint32_t>& order() const { return order_; }
    std::size_t size() const { return order_.size(); }
    // Position in order() of a rank's numbers, how many there are, and the numbers.
    std::size_t first(int rank) const { return firsts_.at(static_cast<std::size_t>(rank)); }
    std::size_t count(int rank) const { return first(rank + 1) - first(rank); }
    std::span<const std::uint32_t> of(int rank) const {
        return std::span(order_).subspan(first(rank), count(rank));
    }
    // The sizes of messages to or from the ranks, with `bytes` for each number.
    mpi::Blocks blocks(std::size_t bytes) const;

private:
    std::vector<std::uint32_t> order_;
    std::vector<std::size_t> firsts_ = {0};  // by rank, and the end
};

// The messages that this rank sends and receives for a range of tiles.
struct Route {
    struct Owned {
        std::size_t tile = 0;
        bool is_passed_on = false;  // by another rank of the node
    };

    shard::TileRange tiles;
    ByRank slices;                    // the tiles, as numbers in `tiles`, by slicer in the group
    std::vector<std::size_t> sliced;  // the tiles of this rank's slice, ascending
    ByRank sent;                      // payloads, as numbers in `sliced`, by receiver
    // The tiles that this rank owns, ascending, and where the payload of each of them and of each
    // group lies: among those received, or among those that were passed on to this rank.
    std::vector<Owned> owned;
    std::vector<std::uint32_t> places;
    ByRank received;     // payloads, as numbers in `places`, by sender
    ByRank passed;       // tiles, as numbers in `owned`, by the rank of the node they are passed to
    ByRank passed_here;  // the same by the rank that passes them
};

// The routes of payloads from slicers to owners. All ranks compute the same routes; each asks for
// its own part.
class Routes {
public:
    // The routes that `rank` asks for. `owners` outlives this. Groups are ranks whose gradients are
    // added before they are encoded. The last `storage_ranks` have no gradients, and groups and
    // nodes of their own.
    Routes(const shard::Ownership& owners, mpi::Topology groups, mpi::Topology nodes, int rank,
           int storage_ranks = 0);

    Route of(shard::TileRange tiles) const;

    // The rank of `group` that adds and encodes the tile: an owner if the group has one.
    int slicer(int group, std::size_t tile) const;

    // Payloads per tile.
    int sources() const { return sources_; }
    // Whether slicers send payloads to other ranks; else each keeps what it makes.
    bool sends_payloads() const { return sources() > 1 || nodes_.groups() > 1; }
    // Whether ranks of some node belong to different copies.
    bool passes_on() const { return passes_on_; }

    bool has_messages() const { return sends_payloads() || passes_on_; }

    const shard::Ownership& owners() const { return owners_; }
    const mpi::Topology& groups() const { return groups_; }
    const mpi::Topology& nodes() const { return nodes_; }
    int rank() const { return rank_; }
    int group() const { return group_; }  // of the rank
    int node() const { return node_; }
    bool is_in_node(int rank) const { return node_of(rank) == node_; }

private:
    int node_of(int rank) const { return nodes_.group_of[static_cast<std::size_t>(rank)]; }
    void add_sent(Route& route) const;
    void add_received(Route& route) const;

    const shard::Ownership& owners_;
    mpi::Topology groups_;
    mpi::Topology nodes_;
    int rank_;
    int group_;
    int node_;
    int sources_;
    bool passes_on_;
};

}  // namespace nearstep::exchange
