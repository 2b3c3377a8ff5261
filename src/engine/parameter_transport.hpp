// How parameters get from host memory to GPUs: every rank copies all of them over its own link, or
// the ranks of a node each copy a part of a block and exchange the parts between GPUs.
#pragma once

#include "config/engine_settings.hpp"
#include "feed/block_parts.hpp"
#include "mpi/communicator.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/nccl/watchdog.hpp"
#include "mpi/topology.hpp"
#include "shard/ownership.hpp"

#include <optional>
#include <string>

namespace nearstep::engine {

// One per rank; outlives the network that uses it.
class ParameterTransport {
public:
    // Collective. Starts NCCL between the GPUs of each node with several ranks, if all ranks can,
    // have all parameters in host memory, and exchange.transport allows it. `watchdog`: see
    // GradientTransport.
    ParameterTransport(const mpi::Communicator& world, const config::EngineSettings& settings,
                       const mpi::Topology& nodes, const shard::Ownership& owners,
                       std::optional<int> device, std::optional<nccl::Watchdog>& watchdog);

    // This rank's part in the joint copy; valid as long as this.
    feed::JointCopy joint();

    // "nccl": the ranks of a node copy blocks together. "host": each copies alone. Empty if no node
    // has several ranks, or the model runs on the CPU. The same on all ranks with equal devices.
    const std::string& transport() const { return transport_; }
    // The same on all ranks.
    bool is_joint() const { return is_joint_; }
    // The transport in words, with the reason if it is not joint.
    std::string describe() const;

private:
    std::string find_obstacle(const mpi::Communicator& world,
                              const config::EngineSettings& settings, const mpi::Topology& nodes,
                              const shard::Ownership& owners, std::optional<int> gpu) const;

    bool is_joint_ = false;
    std::string transport_;
    std::string obstacle_;
    std::optional<nccl::Group> group_;
};

}  // namespace nearstep::engine
