// The parameter gather by deltas: sends the changes from each subgroup's owner to all ranks'
// vectors.
//
// As in the dense gather, a subgroup travels once to each other node, where one rank relays it to
// the others. Only the owner knows a message's size, so the others post receives for the largest
// one. If the ranks of a node share a vector, the owner or the relay applies the message, once. The
// gather is resumable like the dense one.
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

// The message of this rank's subgroup (a position in Partition::subgroups()) with slack behind it;
// empty until it is ready. It must not change until gather() returns.
using FindMessage = std::function<std::span<const std::byte>(std::size_t subgroup)>;

// One per rank; collective like ParameterGather.
class DeltaGather {
public:
    // Parameters must be 16-bit.
    DeltaGather(const mpi::Communicator& world, GatherSettings settings, trace::Traffic& traffic);

    // Starts updating `vector`, this rank's padded parameter vector, from old to new parameters.
    // Returns at once. The old parameters must be equal on all ranks; `vector` must live until
    // finish().
    void begin(std::span<std::byte> vector, FindMessage find_message);

    // Makes progress without waiting.
    void poll();

    // Blocks until all parameters before tile `end` are new; in a shared vector, those that this
    // rank writes.
    void advance(std::size_t end);

    // True if finish() has no parameters left to wait for, as of the last call.
    bool is_over() const {
        return next_own_ == own_.size() && next_foreign_ == foreign_.size() && arrivals_.empty();
    }

    // Blocks until all parameters are new and this rank's messages are sent. Throws Error if a
    // message is damaged or the old parameters differ from its owner's; then the vector is invalid.
    void finish();

    void gather(std::span<std::byte> vector, FindMessage find_message) {
        begin(vector, std::move(find_message));
        finish();
    }

    // Tally of all messages of this rank's subgroups so far.
    const codec::DeltaTally& tally() const { return tally_; }

private:
    // Holds an arriving message until it has been relayed.
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
    // Positions of subgroups in forward order, and how many have begun.
    std::vector<std::size_t> own_;
    std::vector<std::size_t> foreign_;
    std::size_t next_own_ = 0;
    std::size_t next_foreign_ = 0;
    memory::Buffer memory_;  // memory of the slots
    std::vector<Slot> slots_;
    std::deque<Arrival> arrivals_;
    std::span<std::byte> vector_;
    FindMessage find_message_;
    int next_node_ = 0;                       // the next node to send this rank's message to
    std::optional<link::Crossing> crossing_;  // the transfer to that node
    std::vector<mpi::Request> sends_;
    codec::DeltaTally tally_;
    std::optional<std::string> fault_;  // the first fault
};

}  // namespace nearstep::exchange
