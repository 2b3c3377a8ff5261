// Sums of gradients over groups of several nodes (placement.gradients larger than a node).
#pragma once

#include "base/executor.hpp"
#include "codec/codec.hpp"
#include "mpi/communicator.hpp"
#include "mpi/exchange/gradient_scatter.hpp"
#include "mpi/exchange/owner_sum.hpp"
#include "mpi/exchange/routes.hpp"
#include "shard/ownership.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::offload {

struct PipelineSettings;

// Adds up the gradients of groups of nodes. In each group, each tile has a slicer: the group's
// nodes add up their gradients and send it the dense sums. The slicer adds these up, in the order
// of the nodes, encodes the result, and sends that to the tile's owners. So owners get one payload
// of each group. Collective, but for encode().
class JointSums {
public:
    // Builds the sums of the joint groups that `settings` names.
    JointSums(const mpi::Communicator& world, const PipelineSettings& settings,
              std::span<const exchange::Route> rounds, trace::Traffic& traffic);

    // The way of the encoded sums to the owners.
    static exchange::Routes routes_of(const PipelineSettings& settings, int rank);

    // The ranks of this rank's group, numbered by their places there, and the slicers as owners.
    const mpi::Communicator& ranks() const { return ranks_; }
    const shard::Ownership& slicers() const { return slicers_; }

    // `received`: the codec of the nodes' sums. The codecs outlive the step.
    void begin_step(const codec::Codec& received, const exchange::StepEncoding& encoding);

    // Takes the nodes' sums of this rank's slice, ascending.
    void encode(std::span<const exchange::TilePayloads> tiles);
    // Sends the encoded sums of the round, a part of what was encoded last. Returns those of the
    // tiles that this rank owns.
    std::span<const exchange::TilePayloads> send(const exchange::Route& round);

private:
    exchange::Routes routes_;
    mpi::Communicator ranks_;
    shard::Ownership slicers_;
    exchange::GradientScatter scatter_;
    Executor* pool_;
    std::vector<exchange::OwnerSum> sums_;  // one per thread of the pool
    std::size_t payload_bytes_ = 0;
    std::vector<std::size_t> tiles_;  // whose sums are encoded
    std::vector<std::byte> encoded_;
};

}  // namespace nearstep::offload
