// The parameter gather by deltas: what changed, from each subgroup's owner to the vectors of all
// ranks.
//
// As in the dense gather a subgroup travels once to each other node and from the rank that relays
// it to the node's others. A message's size is known to its owner alone: the others post a receive
// for the largest that it can be. Of a vector that the ranks of a node share, the owner or the rank
// that relays applies the message, once.
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
#include <vector>

namespace nearstep::exchange {

// The message of this rank's subgroup (a position in Partition::subgroups()) and the slack behind
// it; empty until it is there. It stays as it is until gather() returns.
using FindMessage = std::function<std::span<const std::byte>(std::size_t subgroup)>;

// One per rank; collective.
class DeltaGather {
public:
    // Of 16-bit parameters.
    DeltaGather(const mpi::Communicator& world, GatherSettings settings, trace::Traffic& traffic);

    // `vector`: the padded parameter vector of this rank, on entry the old parameters, the same on
    // all ranks, on return the new ones; a shared one has them once all ranks of the node are here.
    // Throws Error, after the exchange, if they were not those that an owner's message is against;
    // then the vector is neither.
    void gather(std::span<std::byte> vector, const FindMessage& find_message);

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
    void apply(const codec::DeltaReader& reader, std::span<std::byte> vector, std::size_t subgroup);
    void post_receives();
    bool send_next(std::span<std::byte> vector, const FindMessage& find_message);
    bool take_arrival(std::span<std::byte> vector, bool may_wait);
    void finish();

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
    std::vector<mpi::Request> sends_;
    codec::DeltaTally tally_;
    std::optional<std::string> fault_;  // the first one found
};

}  // namespace nearstep::exchange
