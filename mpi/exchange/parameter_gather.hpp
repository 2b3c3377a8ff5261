// The parameter gather: new parameters of each subgroup from its owner to the vectors of all ranks.
//
// A subgroup travels once to each other node, to the rank there that relays it, and then inside the
// nodes, in place in the parameter vectors; where the ranks of a node share one, it is there then.
// Subgroups go in forward order, a few of them at once.
#pragma once

#include "base/dtype.hpp"
#include "link/node_links.hpp"
#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "shard/partition.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

namespace nearstep::exchange {

struct GatherSettings {
    const shard::Partition* partition = nullptr;  // outlives the gather
    const shard::DeviceMap* devices = nullptr;    // outlives the gather
    Dtype parameter_dtype = Dtype::bf16;
    mpi::Topology nodes;
    bool are_vectors_shared = false;         // by the ranks of a node
    const link::NodeLinks* links = nullptr;  // holds the network to its rate; null: not shaped
    std::size_t in_flight = 8;               // subgroups under way at once, at least 1
};

// True once the parameters of this rank's subgroup (a position in Partition::subgroups()) are in
// the vector.
using IsReady = std::function<bool(std::size_t subgroup)>;

// One per rank; collective.
class ParameterGather {
public:
    ParameterGather(const mpi::Communicator& world, GatherSettings settings,
                    trace::Traffic& traffic);

    // `vector`: the padded parameter vector of this rank. On return it holds all owners'
    // parameters; a shared one once all ranks of the node are here.
    void gather(std::span<std::byte> vector, const IsReady& is_ready);

    // The same of these tiles alone, which all owners have in their vectors. Ascending.
    void bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles);

private:
    // Tiles of one subgroup that travel together.
    struct Piece {
        std::size_t subgroup = 0;
        shard::TileRange tiles;
    };
    struct Flight {
        Piece piece;
        mpi::Request from_owner;              // on the rank that relays
        std::vector<mpi::Request> to_relays;  // on the owner
        mpi::Request in_node;
    };

    std::span<std::byte> place(std::span<std::byte> vector, shard::TileRange tiles) const;
    void move(std::span<std::byte> vector, std::span<const Piece> pieces, const IsReady& is_ready);
    Flight take_off(std::span<std::byte> vector, const Piece& piece, const IsReady& is_ready);
    int owner_of(std::size_t subgroup) const;
    void spread_in_node(std::span<std::byte> vector, Flight& flight);
    void make_progress();
    void complete_oldest();

    const mpi::Communicator& world_;
    GatherSettings settings_;
    trace::Traffic& traffic_;
    int rank_;
    int node_;
    mpi::Communicator node_ranks_;
    std::vector<Piece> subgroups_;  // whole
    // Pieces under way, in the same order on all ranks: first between nodes, then inside them.
    std::deque<Flight> between_;
    std::deque<Flight> inside_;
};

}  // namespace nearstep::exchange
