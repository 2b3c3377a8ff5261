// Plans a rank's share of a GPU and says what it used. Used by the trainer.
#include "train/gpu_share.hpp"

#include "base/error.hpp"
#include "memory/gpu.hpp"
#include "model/compute_device.hpp"
#include "model/gpu_memory.hpp"
#include "model/gpu_peak.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace nearstep::train {

std::size_t gpu_budget(double wanted_gb, std::size_t free_bytes, int ranks_per_gpu) {
    const auto free = 0.95 * static_cast<double>(free_bytes) / ranks_per_gpu;
    return static_cast<std::size_t>(wanted_gb > 0 ? std::min(wanted_gb * 1e9, free) : free);
}

GpuShare::GpuShare(const config::RunSettings& run, const model::ComputeDevice& device, int ranks,
                   int node_ranks, std::size_t gradient_bytes, int joint_ranks)
    : device_(device),
      settings_(run.model),
      work_({.rows = (run.train.global_batch + ranks - 1) / ranks,
             .micro_rows = run.train.micro_batch,
             .is_streamed = run.placement.parameters.is_shared(),
             .joint_ranks = joint_ranks,
             .gradient_bytes = gradient_bytes}),
      buffer_bytes_(gradient_bytes) {
    expects(device.is_gpu(), "a share is one of a GPU");
    memory::use_gpu(*device.gpu);
    model::begin_gpu_memory_use(device);
    name_ = memory::name_of_gpu(*device.gpu);
    if (node_ranks > 1 && memory::is_part_of_gpu(name_)) {
        throw ConfigError(text("This machine has ", node_ranks,
                               " ranks and the GPU is a part of one, ", name_,
                               ", of which a process sees one: start one rank here, or undo "
                               "the parts with nvidia-smi -mig 0."));
    }
    ranks_per_gpu_ = (node_ranks + memory::gpus() - 1) / memory::gpus();
    const memory::GpuRoom room = memory::room_of_gpu();
    // Memory for gradients is allocated already.
    const std::size_t free_bytes =
        room.free_bytes + gradient_bytes * static_cast<std::size_t>(ranks_per_gpu_);
    const std::size_t budget = gpu_budget(run.model.gpu_memory_gb, free_bytes, ranks_per_gpu_);
    plan_ = model::plan_gpu(settings_, work_, budget);
    model::limit_gpu_memory(device, run.model.gpu_memory_gb > 0
                                        ? budget - std::min(budget, gradient_bytes)
                                        : room.total_bytes);
    const Dtype compute = model::compute_format(run.model, device);
    peak_operations_ = run.plan.gpu_tflops > 0 ? std::optional(run.plan.gpu_tflops * 1e12)
                                               : model::peak_operations(name_, compute);
}

void GpuShare::plan_within(std::size_t budget_bytes) {
    if (budget_bytes < plan_.budget_bytes) {
        plan_ = model::plan_gpu(settings_, work_, budget_bytes);
    }
}

report::GpuUse GpuShare::use(const model::NetworkTraffic& traffic, std::size_t steps) const {
    const model::GpuMemoryUse use = model::gpu_memory_use(device_);
    const std::size_t divisor = std::max<std::size_t>(steps, 1);
    return {.name = name_,
            .ranks_per_gpu = ranks_per_gpu_,
            .plan = plan_,
            .most_bytes = use.most_reserved_bytes + buffer_bytes_,
            .most_tensor_bytes = use.most_allocated_bytes + buffer_bytes_,
            .parameter_step_bytes = traffic.parameter_bytes / divisor,
            .input_step_bytes = traffic.input_bytes / divisor,
            .peak_operations = peak_operations_};
}

std::optional<report::GpuUse> gpu_use_of_ranks(const mpi::Communicator& world,
                                               const std::optional<GpuShare>& share,
                                               const model::NetworkTraffic& traffic,
                                               std::size_t steps) {
    std::optional<report::GpuUse> use;
    if (share) {
        use = share->use(traffic, steps);
    }
    const std::array mine{use ? static_cast<double>(use->most_bytes) : 0.0,
                          use ? static_cast<double>(use->most_tensor_bytes) : 0.0};
    const std::vector<double> of_ranks = world.all_gather(mine);
    for (std::size_t i = 0; use && i < of_ranks.size(); i += mine.size()) {
        use->most_bytes = std::max(use->most_bytes, static_cast<std::size_t>(of_ranks[i]));
        use->most_tensor_bytes =
            std::max(use->most_tensor_bytes, static_cast<std::size_t>(of_ranks[i + 1]));
    }
    return use;
}

}  // namespace nearstep::train
