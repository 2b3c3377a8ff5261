#include "train/gradient_gpu.hpp"

#include "base/error.hpp"
#include "memory/gpu.hpp"

#include <algorithm>
#include <chrono>

namespace nearstep::train {

namespace {

// Of the groups with several ranks, the lowest rank's; the same on all ranks. Empty: none.
std::string first_obstacle(const mpi::Communicator& world, const std::optional<std::string>& mine) {
    std::string obstacle;
    try {
        world.together([&] {
            if (mine) {
                throw ConfigError(*mine);
            }
        });
    } catch (const ConfigError& error) {
        obstacle = error.what();
    }
    return obstacle;
}

}  // namespace

GradientGpu::GradientGpu(const mpi::Communicator& world, const config::Run& run,
                         const mpi::Topology& groups, const model::ComputeDevice& device) {
    const bool is_wanted = run.compress.where == "auto" && !run.compress.error_feedback;
    const std::optional<int> gpu = is_wanted && memory::gpus() > 0 ? device.gpu : std::nullopt;
    const bool is_alone = groups.ranks_beside(world.rank()).size() == 1;
    if (is_alone) {
        gpu_ = gpu;
    }
    if (std::all_of(groups.ranks_of.begin(), groups.ranks_of.end(),
                    [](const auto& ranks) { return ranks.size() == 1; })) {
        return;
    }
    transport_ = "mpi";
    if (run.exchange.transport == "mpi") {
        obstacle_ = "exchange.transport says so";
        return;
    }
    const mpi::Communicator ranks =
        world.split(groups.group_of[static_cast<std::size_t>(world.rank())]);
    const std::optional<std::string> here = nccl::find_obstacle(ranks, gpu);
    obstacle_ = first_obstacle(world, is_alone ? std::nullopt : here);
    if (obstacle_.empty()) {
        transport_ = "nccl";
        if (!is_alone) {
            gpu_ = gpu;
            watchdog_.emplace();
            group_.emplace(ranks, *gpu, *watchdog_, std::chrono::seconds(run.exchange.timeout_s));
        }
    } else if (run.exchange.transport == "nccl") {
        throw ConfigError(
            text("exchange.transport is \"nccl\", but ", obstacle_,
                 ": start as many ranks on each node as it has GPUs, set model.device to \"cuda\" "
                 "and build with CUDA and NCCL, or set exchange.transport to \"auto\"."));
    }
}

std::string GradientGpu::describe() const {
    if (transport_.empty()) {
        return "";
    }
    if (transport_ == "nccl") {
        return text("ranks of a node add up their gradients between their GPUs (NCCL ",
                    nccl::library_version(), ")");
    }
    return text("ranks of a node add up their gradients in host memory (", obstacle_, ")");
}

}  // namespace nearstep::train
