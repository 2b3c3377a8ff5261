// A rank's share of a GPU: what it keeps there, by plan, and what it took and did there.
#pragma once

#include "config/run.hpp"
#include "model/compute_device.hpp"
#include "model/gpu_plan.hpp"
#include "model/network.hpp"
#include "mpi/communicator.hpp"

#include <cstddef>
#include <optional>
#include <string>

namespace nearstep::train {

// What a run says of its GPUs at its end; of the rank that took most where it does not say.
struct GpuReport {
    std::string name{};  // of rank 0's
    int ranks_per_gpu = 1;
    model::GpuPlan plan{};                    // rank 0's
    std::size_t most_bytes = 0;               // of the GPU, by one rank
    std::size_t most_tensor_bytes = 0;        // in use at once, of that
    std::size_t parameter_step_bytes = 0;     // brought to rank 0's, a step
    std::size_t input_step_bytes = 0;         // of blocks, out and back in
    std::optional<double> peak_operations{};  // of a GPU, per second
};

class GpuShare {
public:
    // Plans, and holds torch to model.gpu_memory_gb where that is set. `node_ranks`: of this node.
    // `gradient_bytes`, `joint_ranks`: as in model::GpuWork. Throws ConfigError if the model does
    // not fit.
    GpuShare(const config::Run& run, const model::ComputeDevice& device, int ranks, int node_ranks,
             std::size_t gradient_bytes, int joint_ranks);

    // Plans again if that is less than there is: ranks that bring blocks together have one plan.
    // Throws ConfigError if the model does not fit.
    void plan_within(std::size_t budget_bytes);

    const model::GpuPlan& plan() const { return plan_; }

    // With what this rank took.
    GpuReport report(const model::NetworkTraffic& traffic, std::size_t steps) const;

private:
    model::ComputeDevice device_;
    config::ModelSettings settings_;
    model::GpuWork work_;
    model::GpuPlan plan_;
    int ranks_per_gpu_ = 1;
    std::size_t buffer_bytes_ = 0;  // beside torch's
    std::string name_;
    std::optional<double> peak_operations_;
};

// Of this rank's GPU, with what the ranks took at most; none if it has none. Collective. `traffic`:
// of so many steps.
std::optional<GpuReport> report_gpus(const mpi::Communicator& world,
                                     const std::optional<GpuShare>& share,
                                     const model::NetworkTraffic& traffic, std::size_t steps);

// Bytes that one of `ranks_per_gpu` ranks may take: `wanted_gb` or, if that is 0 or more than there
// is, its part of what is free, but for what others may come to need.
std::size_t gpu_budget(double wanted_gb, std::size_t free_bytes, int ranks_per_gpu);

}  // namespace nearstep::train
