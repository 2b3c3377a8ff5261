// How parameters come from host memory to the ranks' GPUs: all of them over each GPU's link, or a
// part of each block, and the rest between the GPUs of a node.
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
class ParameterGpu {
public:
    // Collective. Starts NCCL between the GPUs of each node that has several ranks, if they all
    // can, have all parameters in host memory, and exchange.transport lets them. `watchdog`: as
    // GradientGpu has it.
    ParameterGpu(const mpi::Communicator& world, const config::EngineSettings& settings,
                 const mpi::Topology& nodes, const shard::Ownership& owners,
                 std::optional<int> device, std::optional<nccl::Watchdog>& watchdog);

    // This rank's, valid as long as this.
    feed::JointCopy joint();

    // "nccl": nodes' ranks bring blocks together; "host": each by itself; empty where no node has
    // several ranks, or the model computes on the CPU. The same on all ranks whose devices are
    // alike.
    const std::string& transport() const { return transport_; }
    // The same on all ranks.
    bool is_joint() const { return is_joint_; }
    // As words, with why not together.
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
