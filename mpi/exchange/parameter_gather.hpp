// The parameter gather: brings new parameters, or deltas against the old ones, from each subgroup's
// owner to all ranks' vectors.
//
// A subgroup travels once to each other node, to one rank that relays it to the rest of the node.
// If ranks of a node share a vector, one of them writes to it. Parameters are received in place; a
// delta arrives in a slot, whose size is that of the largest message, because only the owner knows
// its size. Owners send as soon as a subgroup is ready; ranks receive in forward order, a few
// subgroups at once. The gather is resumable: the MPI thread can do other work between calls while
// transfers continue.
#pragma once

#include "base/dtype.hpp"
#include "codec/delta.hpp"
#include "memory/buffer.hpp"
#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "shaping/node_links.hpp"
#include "shard/partition.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::exchange {

struct ParameterGatherSettings {
    const shard::Partition* partition = nullptr;  // outlives the gather
    const shard::DeviceMap* devices = nullptr;    // of the partition, used by the constructor alone
    std::vector<int> sources = {};  // of each subgroup: the rank that has it; empty: its device's
    Dtype parameter_dtype = Dtype::bf16;
    mpi::Topology nodes;
    mpi::Topology vectors = {};  // ranks of a node that share a vector; empty: each has its own
    int storage_nodes = 0;       // the last ones, which get no parameters
    bool has_deltas = false;     // begin_deltas() may be called; 16-bit parameters only
    const shaping::NodeLinks* links = nullptr;  // limits the network rate; null: no limit
    std::size_t in_flight = 0;                  // subgroups that a rank receives at once; 0: enough
};

// True once the parameters of this rank's subgroup (a position in Partition::subgroups()) are in
// the vector.
using IsReady = std::function<bool(std::size_t subgroup)>;

// The message of this rank's subgroup with slack behind it; empty until it is ready. It must not
// change until finish() returns.
using FindMessage = std::function<std::span<const std::byte>(std::size_t subgroup)>;

// One per rank; collective except poll(). Begin; then advance() any number of times, with the same
// tiles on all ranks; then finish().
class ParameterGather {
public:
    ParameterGather(const mpi::Communicator& world, ParameterGatherSettings settings,
                    trace::Traffic& traffic);

    // Starts gathering all owners' parameters into `vector`, this rank's padded parameter vector.
    // Returns at once; `vector` must live until finish().
    void begin(std::span<std::byte> vector, IsReady is_ready);

    // Starts updating `vector` from old to new parameters. The old ones must be equal on all ranks.
    void begin_deltas(std::span<std::byte> vector, FindMessage find_message);

    // Makes progress without waiting.
    void poll();

    // Blocks until all parameters before tile `end` are new; in a shared vector, those that this
    // rank writes.
    void advance(std::size_t end);

    // True if finish() has no parameters left to wait for, as of the last call.
    bool is_over() const {
        return next_own_ == own_.size() && next_foreign_ == foreign_.size() && arrivals_.empty();
    }

    // Blocks until all parameters are new and this rank's are sent. Throws Error if a delta is
    // damaged or the old parameters differ from its owner's; then the vector is invalid.
    void finish();

    void gather(std::span<std::byte> vector, IsReady is_ready) {
        begin(vector, std::move(is_ready));
        finish();
    }

    // Does what gather() does, for these tiles only. The tiles ascend.
    void bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles,
               IsReady is_ready);

    // Seconds in which this rank only waited for parameters, since the last call.
    struct Waits {
        double all = 0;
        // The part of these seconds in which parameters of most other ranks had come already, by
        // the rank that was waited for.
        std::map<int, double> for_late = {};
    };
    Waits take_waits() { return std::exchange(waits_, {}); }

    // Tally of all deltas of this rank's subgroups so far.
    const codec::DeltaTally& tally() const { return tally_; }

private:
    // Tiles of one subgroup that travel together.
    struct GatherPiece {
        std::size_t subgroup = 0;
        shard::TileRange tiles;
    };
    // Where an arriving delta stays until it has been relayed.
    struct RelaySlot {
        std::span<std::byte> room;  // empty without deltas
        std::vector<mpi::Request> onward;
    };
    struct Message {
        std::span<const std::byte> bytes;
        std::optional<codec::DeltaReader> deltas = std::nullopt;
    };
    // Returns this rank's piece or its delta; empty until it is ready.
    using Find = std::function<std::span<const std::byte>(const GatherPiece& piece)>;
    struct Arrival {
        GatherPiece piece;
        RelaySlot* slot = nullptr;
        mpi::Request from_source;
    };

    int reading_nodes() const { return settings_.nodes.groups() - settings_.storage_nodes; }
    bool reads() const { return node_ < reading_nodes(); }
    int owner_of(const GatherPiece& piece) const { return settings_.sources[piece.subgroup]; }
    int relay_here(const GatherPiece& piece) const;
    bool writes(int rank, const GatherPiece& piece) const;
    std::span<std::byte> place(const GatherPiece& piece) const;
    std::size_t enough_in_flight() const;
    void make_slots();
    std::span<std::byte> room_of(const RelaySlot& slot, const GatherPiece& piece) const;
    Find in_place(IsReady is_ready) const;
    void begin(std::span<std::byte> vector, std::span<const GatherPiece> pieces, bool are_deltas,
               Find find);
    Message read(std::span<const std::byte> room, const GatherPiece& piece) const;
    void spread_in_node(const Message& message, const GatherPiece& piece,
                        std::vector<mpi::Request>& requests);
    void apply(const Message& message, const GatherPiece& piece);
    void post_receives();
    bool leave_node(const Message& message, int tag);
    bool send_next();
    void wait_for_first();
    bool take_arrival(bool may_wait);
    bool move_on(bool may_wait);

    const mpi::Communicator& world_;
    ParameterGatherSettings settings_;
    trace::Traffic& traffic_;
    int rank_;
    int node_;
    std::vector<GatherPiece> subgroups_;  // whole
    memory::Buffer memory_;               // of the slots
    std::vector<RelaySlot> slots_;
    codec::DeltaTally tally_;
    Waits waits_;
    // The members below describe the current gather. Pieces are in forward order.
    std::span<std::byte> vector_;
    bool are_deltas_ = false;
    Find find_;
    std::vector<GatherPiece> own_;      // that this rank sends
    std::vector<GatherPiece> foreign_;  // that it receives
    std::size_t next_own_ = 0;
    std::size_t next_foreign_ = 0;
    std::deque<Arrival> arrivals_;
    int next_node_ = 0;                          // the next node to send this rank's piece to
    std::optional<shaping::Crossing> crossing_;  // the transfer to that node
    std::vector<mpi::Request> sends_;
    std::optional<std::string> fault_;  // the first fault
};

}  // namespace nearstep::exchange
