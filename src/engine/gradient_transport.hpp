// Decides where gradients are summed and encoded (on GPUs or on the host) and how they travel
// between ranks.
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/nccl/watchdog.hpp"
#include "mpi/topology.hpp"

#include <optional>
#include <string>

namespace nearstep::engine {

// Conditions on the way of payloads to the tiles' owners. The same on all ranks.
struct PayloadConditions {
    int copies = 1;          // of the optimizer state
    bool is_shaped = false;  // links limit the rate of transfers
};

// One per rank; outlives the pipeline that uses it.
class GradientTransport {
public:
    // Collective. `groups`: ranks whose gradients are summed before they are encoded. Starts NCCL
    // between the GPUs of each group with several ranks and, if there are several groups, between
    // all GPUs. It does so if all ranks can and exchange.transport allows it. Throws ConfigError on
    // all ranks if "nccl" is demanded and a group cannot. `watchdog` is the process's: started if
    // necessary, outlives this.
    GradientTransport(const mpi::Communicator& world, const config::EngineSettings& settings,
                      const mpi::Topology& groups, const PayloadConditions& road,
                      std::optional<int> device, std::optional<nccl::Watchdog>& watchdog);

    // The GPU where this rank's gradients stay until they are encoded. None: they go to the host.
    std::optional<int> gpu() const { return gpu_; }

    // This rank's group. Null if the rank is alone in it or gradients are summed on the host.
    nccl::Group* group() { return group_ ? &*group_ : nullptr; }

    // All ranks. Null if there is only one group or payloads travel through host memory.
    nccl::Group* payload_ranks() { return payload_ranks_ ? &*payload_ranks_ : nullptr; }

    // "nccl" or "mpi": how gradients are summed within a group. Empty if every rank is its own
    // group.
    const std::string& transport() const { return transport_; }
    // The same for payloads between groups. Empty if there is one group.
    const std::string& payload_transport() const { return payload_transport_; }
    // Both in words, with the reason if NCCL is not used. Empty if neither travels.
    std::string describe() const;

private:
    void join_group(const mpi::Communicator& world, const config::EngineSettings& settings,
                    const mpi::Topology& groups, std::optional<nccl::Watchdog>& watchdog);
    std::string find_payload_obstacle(const mpi::Communicator& world,
                                      const config::EngineSettings& settings,
                                      const PayloadConditions& road) const;

    std::optional<int> gpu_;
    std::string transport_;
    std::string obstacle_;  // why not NCCL; the same on all ranks
    std::string payload_transport_;
    std::string payload_obstacle_;
    std::optional<nccl::Group> group_;
    std::optional<nccl::Group> payload_ranks_;
};

}  // namespace nearstep::engine
