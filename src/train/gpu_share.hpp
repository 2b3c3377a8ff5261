// A rank's share of a GPU: its planned memory use, and what it used and moved.
#pragma once

#include "config/run_settings.hpp"
#include "model/compute_device.hpp"
#include "model/gpu_plan.hpp"
#include "model/network.hpp"
#include "mpi/communicator.hpp"
#include "report/record.hpp"

#include <cstddef>
#include <optional>
#include <string>

namespace nearstep::train {

class GpuShare {
public:
    // Plans, and limits torch to model.gpu_memory_gb if that is set. `node_ranks`: number of ranks
    // on this node. `gradient_bytes`, `joint_ranks`: see model::GpuWork. Throws ConfigError if the
    // model does not fit.
    GpuShare(const config::RunSettings& run, const model::ComputeDevice& device, int ranks,
             int node_ranks, std::size_t gradient_bytes, int joint_ranks);

    // Plans again if `budget_bytes` is less than before: ranks that copy blocks together share one
    // plan. Throws ConfigError if the model does not fit.
    void plan_within(std::size_t budget_bytes);

    const model::GpuPlan& plan() const { return plan_; }

    // Peak operations per second of this rank's part of the GPU; empty: unknown.
    std::optional<double> peak_operations() const {
        return peak_operations_ ? std::optional(*peak_operations_ / ranks_per_gpu_) : std::nullopt;
    }

    // The plan and what this rank used.
    report::GpuUse use(const model::NetworkTraffic& traffic, std::size_t steps) const;

private:
    model::ComputeDevice device_;
    config::ModelSettings settings_;
    model::GpuWork work_;
    model::GpuPlan plan_;
    int ranks_per_gpu_ = 1;
    std::size_t buffer_bytes_ = 0;  // not allocated by torch
    std::string name_;
    std::optional<double> peak_operations_;
};

// Measures the use of this rank's GPU and takes the maxima over ranks; none without a GPU.
// `traffic` covers `steps` steps. Collective.
std::optional<report::GpuUse> gpu_use_of_ranks(const mpi::Communicator& world,
                                               const std::optional<GpuShare>& share,
                                               const model::NetworkTraffic& traffic,
                                               std::size_t steps);

// GPU memory in bytes for one of `ranks_per_gpu` ranks. It is `wanted_gb` or, if that is 0 or
// exceeds what is there, its part of the free memory minus a reserve.
std::size_t gpu_budget(double wanted_gb, std::size_t free_bytes, int ranks_per_gpu);

}  // namespace nearstep::train
