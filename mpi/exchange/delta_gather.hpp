// The parameter gather by deltas: what changed, from each subgroup's owner to the vectors of all
// ranks.
//
// As in the dense gather a subgroup travels once to each other node and from the rank that relays
// it to the node's others. A message's size is known to its owner alone: the others post a receive
// for the largest that it can be. Of a vector that the ranks of a node share, the owner or the rank
// that relays applies the message, once. It is resumable as the dense one is.
#pragma once

#include "codec/delta.hpp"
#include "memory/buffer.hpp"
#include "mpi/communicator.hpp"
#include "mpi/exchange/parameter_gather.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::exchange {

// The message of this rank's subgroup (a position in Partition::subgroups()) and the slack behind
// it; empty until it is there. It stays as it is until gather() returns.
using FindMessage = std::function<std::span<const std::byte>(std::size_t subgroup)>;

// One per rank; collective as ParameterGather is.
class DeltaGather {
public:
    // Of 16-bit parameters.
    DeltaGather(const mpi::Communicator& world, GatherSettings settings, trace::Traffic& traffic);

    // Begins to turn `vector`, the padded parameter vector of this rank and the same on all ranks,
    // from the old parameters into the new ones; returns at once. It stays until finish().
    void begin(std::span<std::byte> vector, FindMessage find_message);

    // Moves on what can be without waiting.
    void poll();

    // Blocks until all parameters before tile `end` are new; in a shared vector those that this
    // rank writes.
    void advance(std::size_t end);

    // True once finish() has no parameters left to wait for, as far as the last call saw.
    bool is_over() const {
        return next_own_ == own_.size() && next_foreign_ == foreign_.size() && arrivals_.empty();
    }

    // Blocks until all are, and this rank's messages are with all others. Throws Error if the old
    // ones were not those that an owner's message is against; then the vector is neither.
    void finish();

    void gather(std::span<std::byte> vector, FindMessage find_message) {
        begin(vector, std::move(find_message));
        finish();
    }

    // Of all messages of this rank's subgroups so far.
    const codec::DeltaTally& tally() const { return tally_; }

private:
    // Where a message arrives, and stays until it has been sent on.
    struct Slot {
        std::span<std::byte> room;
        std::vector<mpi::Request> onward;
    };
    struct Arrival {
        std::size_t subgroup = 0;
        Slot* slot = nullptr;
        mpi::Request from_source;
    };

    int owner_of(std::size_t subgroup) const;
    int source_of(std::size_t subgroup) const;
    void spread_in_node(std::span<const std::byte> message, std::size_t subgroup,
                        std::vector<mpi::Request>& requests);
    void apply(const codec::DeltaReader& reader, std::size_t subgroup);
    void post_receives();
    bool leave_node(std::span<const std::byte> message, int tag);
    bool send_next();
    bool take_arrival(bool may_wait);
    bool move_on(bool may_wait);
    std::size_t before(const std::vector<std::size_t>& subgroups, std::size_t end) const;

    const mpi::Communicator& world_;
    GatherSettings settings_;
    trace::Traffic& traffic_;
    int rank_;
    int node_;
    // Positions of subgroups in forward order, and how many of them were begun.
    std::vector<std::size_t> own_;
    std::vector<std::size_t> foreign_;
    std::size_t next_own_ = 0;
    std::size_t next_foreign_ = 0;
    memory::Buffer memory_;  // of the slots
    std::vector<Slot> slots_;
    std::deque<Arrival> arrivals_;
    std::span<std::byte> vector_;
    FindMessage find_message_;
    int next_node_ = 0;                       // that the next of this rank's messages goes to
    std::optional<link::Crossing> crossing_;  // to that node
    std::vector<mpi::Request> sends_;
    codec::DeltaTally tally_;
    std::optional<std::string> fault_;  // the first one found
};

}  // namespace nearstep::exchange
