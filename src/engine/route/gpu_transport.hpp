// Decides where gradients are summed and encoded (on GPUs or on the host), how they travel between
// ranks, and how parameters get from host memory to GPUs.
#pragma once

#include "config/engine_settings.hpp"
#include "engine/route/parameter_vector.hpp"
#include "feed/block_parts.hpp"
#include "mpi/communicator.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/nccl/watchdog.hpp"
#include "mpi/topology.hpp"
#include "shard/ownership.hpp"

#include <optional>
#include <string>

namespace nearstep::engine {

// Conditions that decide the transport. All ranks have the same.
struct GpuConditions {
    const mpi::Topology& groups;        // see GradientRoute
    const mpi::Topology& joint_groups;  // the same
    const ParameterGroups& parameters;
    const shard::Ownership& owners;
    bool is_shaped = false;   // links limit the rate of transfers
    bool has_kernels = true;  // GPUs encode the run's codec
};

// One per rank; outlives the pipeline and the network that use it.
class GpuTransport {
public:
    // Collective. Starts NCCL, if all ranks can and exchange.transport allows it, between the GPUs
    // of each group with several ranks, for sums; of all ranks or those of each joint group, if
    // there are several groups, for payloads; and of the ranks of a node that hold all parameters,
    // if they are several, for these. Throws ConfigError on all ranks if "nccl" is demanded and a
    // group cannot. `gpu`: this rank's, if it has one.
    GpuTransport(const mpi::Communicator& world, const config::EngineSettings& settings,
                 const GpuConditions& conditions, std::optional<int> gpu);

    // The GPU where this rank's gradients stay until they are encoded; nullopt: they go to the
    // host.
    std::optional<int> gradient_gpu() const { return gradient_gpu_; }

    // The ranks that sum gradients with this one. Null if it is alone, or they do so on the host.
    nccl::Group* group() { return sums_.group(); }
    // All ranks, or those of the joint group. Null if there is only one group or payloads travel
    // through host memory.
    nccl::Group* payload_ranks() { return payloads_.group(); }

    // Whether the ranks of a node each copy a part of a block and exchange the parts between GPUs;
    // else every rank copies all over its own link. The same on all ranks.
    bool is_joint() const { return parameters_.is_needed && parameters_.obstacle.empty(); }
    // Returns this rank's part in the joint copy, which is valid as long as this.
    feed::JointCopy joint();

    // "nccl" or "mpi": how gradients are summed within a group, and how payloads travel between
    // groups; empty if every rank is its own group, and if there is one group.
    std::string transport() const { return sums_.name("mpi"); }
    std::string payload_transport() const { return payloads_.name("mpi"); }
    // "nccl": the ranks of a node copy blocks together. "host": each copies alone. Empty if no node
    // has several ranks, or the model runs on the CPU. The same on all ranks with equal devices.
    std::string parameter_transport() const { return has_gpu_ ? parameters_.name("host") : ""; }

    // Seconds that this rank's GPU was in NCCL's operations since the last call: it moved data, or
    // waited for the GPUs of other ranks.
    double take_seconds();

    // All of them in words, with the reason if NCCL is not used. Empty if nothing travels.
    std::string describe_gradients() const;
    std::string describe_parameters() const;

private:
    // An exchange that NCCL does between GPUs if nothing prevents it.
    struct DeviceExchange {
        bool is_needed = false;
        std::string obstacle = {};  // why not NCCL, as the end of a sentence; the same on all ranks
        std::optional<nccl::Group> ranks = std::nullopt;  // if this rank takes part

        nccl::Group* group() { return ranks ? &*ranks : nullptr; }
        std::string name(const char* otherwise) const {
            return !is_needed ? "" : obstacle.empty() ? "nccl" : otherwise;
        }
    };

    void find_sums(const mpi::Communicator& world, const config::EngineSettings& settings,
                   const mpi::Topology& groups, std::optional<int> gpu);
    void find_payloads(const mpi::Communicator& world, const config::EngineSettings& settings,
                       const GpuConditions& conditions);
    void find_parameters(const mpi::Communicator& world, const config::EngineSettings& settings,
                         const GpuConditions& conditions, std::optional<int> gpu);
    void start(DeviceExchange& way, const mpi::Communicator& ranks, int gpu,
               const config::EngineSettings& settings);

    bool has_gpu_;
    bool encodes_on_host_;  // whatever GPU there is
    std::optional<int> gradient_gpu_;
    std::optional<nccl::Watchdog> watchdog_;  // outlives the groups
    DeviceExchange sums_;
    DeviceExchange payloads_;
    DeviceExchange parameters_;
};

}  // namespace nearstep::engine
