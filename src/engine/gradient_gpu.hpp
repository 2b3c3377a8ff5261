// Where the gradients of a run are added up and encoded, on the ranks' GPUs or on the host, and how
// they travel between ranks.
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/nccl/watchdog.hpp"
#include "mpi/topology.hpp"

#include <optional>
#include <string>

namespace nearstep::engine {

// What payloads meet on their way to the tiles' owners; the same on all ranks.
struct PayloadRoad {
    int copies = 1;          // of the optimizer state
    bool is_shaped = false;  // links hold transfers to a rate
};

// One per rank; outlives the pipeline that uses it.
class GradientGpu {
public:
    // Collective. `groups`: those whose gradients are added up before they are encoded. Starts NCCL
    // between the GPUs of each that has several ranks, and, where there are several groups, between
    // the GPUs of all ranks, if they all can and exchange.transport lets them. Throws ConfigError
    // on all ranks if it says "nccl" and the ranks of a group cannot. `watchdog`: the process's,
    // which is started if it was not and outlives this.
    GradientGpu(const mpi::Communicator& world, const config::EngineSettings& settings,
                const mpi::Topology& groups, const PayloadRoad& road, std::optional<int> device,
                std::optional<nccl::Watchdog>& watchdog);

    // That this rank's gradients stay on until they are encoded. None: they go to the host.
    std::optional<int> gpu() const { return gpu_; }

    // Of this rank's group; null where it is alone in it, or gradients are added up on the host.
    nccl::Group* group() { return group_ ? &*group_ : nullptr; }

    // All ranks; null where there is one group, or payloads travel through host memory.
    nccl::Group* payload_ranks() { return payload_ranks_ ? &*payload_ranks_ : nullptr; }

    // "nccl" or "mpi": how gradients of a group's ranks come together; empty where every rank is a
    // group by itself.
    const std::string& transport() const { return transport_; }
    // The same of payloads between groups; empty where there is one.
    const std::string& payload_transport() const { return payload_transport_; }
    // Both as words, with why not by NCCL; empty: neither travels.
    std::string describe() const;

private:
    void join_group(const mpi::Communicator& world, const config::EngineSettings& settings,
                    const mpi::Topology& groups, std::optional<nccl::Watchdog>& watchdog);
    std::string find_payload_obstacle(const mpi::Communicator& world,
                                      const config::EngineSettings& settings,
                                      const PayloadRoad& road) const;

    std::optional<int> gpu_;
    std::string transport_;
    std::string obstacle_;  // to NCCL; the same on all ranks
    std::string payload_transport_;
    std::string payload_obstacle_;
    std::optional<nccl::Group> group_;
    std::optional<nccl::Group> payload_ranks_;
};

}  // namespace nearstep::engine
