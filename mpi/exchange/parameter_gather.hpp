// The parameter gather: sends new parameters from each subgroup's owner to all ranks' vectors.
//
// A subgroup travels once to each other node, to one rank that relays it to the rest of the node.
// Transfers are in place in the parameter vectors; a vector shared by a node's ranks needs no
// relaying. Subgroups go in forward order, a few at once. The gather is resumable: the MPI thread
// can do other work between calls while transfers continue.
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
    bool are_vectors_shared = false;         // one vector per node, shared by its ranks
    const link::NodeLinks* links = nullptr;  // limits the network rate; null: no limit
    std::size_t in_flight = 8;               // subgroups in transfer at once, at least 1
};

// True once the parameters of this rank's subgroup (a position in Partition::subgroups()) are in
// the vector.
using IsReady = std::function<bool(std::size_t subgroup)>;

// One per rank; collective except poll(). Call begin(); then advance() any number of times, with
// the same tiles on all ranks; then finish().
class ParameterGather {
public:
    ParameterGather(const mpi::Communicator& world, GatherSettings settings,
                    trace::Traffic& traffic);

    // Starts gathering all owners' parameters into `vector`, this rank's padded parameter vector.
    // Returns at once; `vector` must live until finish().
    void begin(std::span<std::byte> vector, IsReady is_ready);

    // Makes progress without waiting.
    void poll();

    // Blocks until all parameters before tile `end` are in the vector; in a shared vector, those
    // that this rank writes.
    void advance(std::size_t end);

    // True if finish() has nothing left to wait for, as of the last call.
    bool is_over() const { return entered_ == pieces_.size() && inside_.empty(); }

    // Blocks until all parameters are in the vector and this rank's are sent.
    void finish();

    void gather(std::span<std::byte> vector, IsReady is_ready) {
        begin(vector, std::move(is_ready));
        finish();
    }

    // Same as gather(), for these tiles only; ascending.
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
        mpi::Request from_owner;              // on the relay
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
    std::vector<Piece> brought_;    // the pieces of bring()
    std::size_t ahead_;             // most pieces between nodes at once
    std::span<std::byte> vector_;
    std::span<const Piece> pieces_;
    IsReady is_ready_;
    // Pieces in transfer, in the same order on all ranks: the next to begin, those between nodes,
    // those inside nodes.
    std::size_t next_ = 0;
    Flight departing_;                        // the next piece, while it waits for the network
    int next_node_ = 0;                       // the node to send it to next
    std::optional<link::Crossing> crossing_;  // the transfer to that node
    std::deque<Flight> between_;
    std::deque<Flight> inside_;
    std::size_t entered_ = 0;  // pieces that have entered inside_
};

}  // namespace nearstep::exchange
