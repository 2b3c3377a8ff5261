// The parameter gather: new parameters of each subgroup from its owner to the vectors of all ranks.
//
// A subgroup travels once to each other node, to the rank there that relays it, and then inside the
// nodes, in place in the parameter vectors; where the ranks of a node share one, it is there then.
// Subgroups go in forward order, a few of them at once. It is resumable: between the calls the
// thread that calls MPI does other work, and what was begun travels on.
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
#include <optional>
#include <span>
#include <utility>
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

// One per rank; collective, but for poll(): begin(); then advance() with the same tiles on all
// ranks, any number of times; then finish().
class ParameterGather {
public:
    ParameterGather(const mpi::Communicator& world, GatherSettings settings,
                    trace::Traffic& traffic);

    // Begins to bring all owners' parameters to `vector`, the padded parameter vector of this rank,
    // which stays until finish(); returns at once.
    void begin(std::span<std::byte> vector, IsReady is_ready);

    // Moves on what can be without waiting.
    void poll();

    // Blocks until all parameters before tile `end` are in the vector; in a shared one those that
    // this rank writes.
    void advance(std::size_t end);

    // True once finish() has nothing left to wait for, as far as the last call saw.
    bool is_over() const { return entered_ == pieces_.size() && inside_.empty(); }

    // Blocks until all are there, and this rank's are with all others.
    void finish();

    void gather(std::span<std::byte> vector, IsReady is_ready) {
        begin(vector, std::move(is_ready));
        finish();
    }

    // The same of these tiles alone, ascending.
    void bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles,
               IsReady is_ready);

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

    std::span<std::byte> place(shard::TileRange tiles) const;
    void begin(std::span<std::byte> vector, std::span<const Piece> pieces, IsReady is_ready);
    bool take_off();
    bool leave_node(std::span<const std::byte> bytes, int owner, int tag);
    bool take_off_ready();
    int owner_of(std::size_t subgroup) const;
    void spread_in_node(Flight& flight);
    void enter_node();
    void make_progress();
    void advance_to_piece(std::size_t piece);
    static bool is_complete(Flight& flight);
    void complete_oldest();

    const mpi::Communicator& world_;
    GatherSettings settings_;
    trace::Traffic& traffic_;
    int rank_;
    int node_;
    mpi::Communicator node_ranks_;
    std::vector<Piece> subgroups_;  // whole
    std::vector<Piece> brought_;    // what bring() was asked for
    std::size_t ahead_;             // pieces between nodes at once
    std::span<std::byte> vector_;
    std::span<const Piece> pieces_;
    IsReady is_ready_;
    // Pieces under way, in the same order on all ranks: the next to begin, those between nodes,
    // then those inside them.
    std::size_t next_ = 0;
    Flight departing_;                        // the next one, while it waits for the network
    int next_node_ = 0;                       // that it goes to
    std::optional<link::Crossing> crossing_;  // to that node
    std::deque<Flight> between_;
    std::deque<Flight> inside_;
    std::size_t entered_ = 0;  // pieces that came to inside_
};

}  // namespace nearstep::exchange
