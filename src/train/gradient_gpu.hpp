// Where the gradients of a run are added up and encoded: on the ranks' GPUs, or on the host.
#pragma once

#include "config/run.hpp"
#include "model/compute_device.hpp"
#include "mpi/communicator.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/nccl/watchdog.hpp"
#include "mpi/topology.hpp"

#include <optional>
#include <string>

namespace nearstep::train {

// One per rank; outlives the pipeline that uses it.
class GradientGpu {
public:
    // Collective. `groups`: those whose gradients are added up before they are encoded. Starts NCCL
    // between the GPUs of each that has several ranks, if they all can and exchange.transport lets
    // them. Throws ConfigError on all ranks if it says "nccl" and they cannot.
    GradientGpu(const mpi::Communicator& world, const config::Run& run, const mpi::Topology& groups,
                const model::ComputeDevice& device);

    // That this rank's gradients stay on until they are encoded. None: they go to the host.
    std::optional<int> gpu() const { return gpu_; }

    // Of this rank's group; null where it is alone in it, or gradients are added up on the host.
    nccl::Group* group() { return group_ ? &*group_ : nullptr; }

    // "nccl" or "mpi": how gradients of a group's ranks come together; empty where every rank is a
    // group by itself.
    const std::string& transport() const { return transport_; }
    // The same as words, with why not by NCCL.
    std::string describe() const;

private:
    std::optional<int> gpu_;
    std::string transport_;
    std::string obstacle_;  // to NCCL; the same on all ranks
    std::optional<nccl::Watchdog> watchdog_;
    std::optional<nccl::Group> group_;
};

}  // namespace nearstep::train
