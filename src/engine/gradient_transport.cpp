#include "engine/gradient_transport.hpp"

#include "base/error.hpp"
#include "engine/gpu_groups.hpp"
#include "memory/gpu.hpp"

#include <utility>

namespace nearstep::engine {

GradientTransport::GradientTransport(const mpi::Communicator& world,
                                     const config::EngineSettings& settings,
                                     const mpi::Topology& groups, const PayloadConditions& road,
                                     std::optional<int> device,
                                     std::optional<nccl::Watchdog>& watchdog) {
    const bool is_wanted = settings.compress.where == "auto" && !settings.compress.error_feedback;
    if (is_wanted && memory::gpus() > 0) {
        gpu_ = device;
    }
    join_group(world, settings, groups, watchdog);
    if (groups.groups() == 1) {
        return;
    }
    payload_obstacle_ = find_payload_obstacle(world, settings, road);
    payload_transport_ = payload_obstacle_.empty() ? "nccl" : "mpi";
    if (payload_obstacle_.empty()) {
        start_group(world, *gpu_, settings, watchdog, payload_ranks_);
    }
}

// Joins the ranks that sum gradients with this rank. Without NCCL, a group of several ranks sums
// its gradients on the host.
void GradientTransport::join_group(const mpi::Communicator& world,
                                   const config::EngineSettings& settings,
                                   const mpi::Topology& groups,
                                   std::optional<nccl::Watchdog>& watchdog) {
    if (is_each_alone(groups)) {
        return;
    }
    const bool is_alone = groups.ranks_beside(world.rank()).size() == 1;
    const std::optional<int> gpu = is_alone ? gpu_ : std::exchange(gpu_, std::nullopt);
    transport_ = "mpi";
    if (settings.exchange.transport == "mpi") {
        obstacle_ = kTransportSaysSo;
        return;
    }
    obstacle_ = obstacle_in_groups(world, groups, gpu);
    if (obstacle_.empty()) {
        transport_ = "nccl";
        const mpi::Communicator ranks =
            world.split(groups.group_of[static_cast<std::size_t>(world.rank())]);
        if (!is_alone) {
            gpu_ = gpu;
            start_group(ranks, *gpu, settings, watchdog, group_);
        }
    } else if (settings.exchange.transport == "nccl") {
        throw ConfigError(
            text("exchange.transport is \"nccl\", but ", obstacle_,
                 ": start as many ranks on each node as it has GPUs, set model.device to \"cuda\" "
                 "and build with CUDA and NCCL, or set exchange.transport to \"auto\"."));
    }
}

// Why payloads cannot travel between GPUs; empty: they can.
std::string GradientTransport::find_payload_obstacle(const mpi::Communicator& world,
                                                     const config::EngineSettings& settings,
                                                     const PayloadConditions& road) const {
    if (settings.exchange.transport == "mpi") {
        return kTransportSaysSo;
    }
    if (transport_ == "mpi") {
        return obstacle_;
    }
    if (settings.compress.where == "host" || settings.compress.error_feedback) {
        return "they are encoded there";
    }
    if (road.copies > 1) {
        return text("each goes to ", road.copies, " copies of the optimizer state");
    }
    if (road.is_shaped) {
        return "the site's rates hold them up";
    }
    return nccl::find_obstacle(world, gpu_).value_or("");
}

std::string GradientTransport::describe() const {
    std::string words;
    if (!transport_.empty()) {
        words = text("ranks of a node add up their gradients ",
                     transport_ == "nccl" ? text("between their GPUs", nccl_words())
                                          : text("in host memory (", obstacle_, ")"));
    }
    if (!payload_transport_.empty()) {
        words += text(words.empty() ? "" : "; ", "payloads travel to the tiles' owners ",
                      payload_transport_ == "nccl"
                          ? text("from GPU to GPU", nccl_words())
                          : text("through host memory (", payload_obstacle_, ")"));
    }
    return words;
}

}  // namespace nearstep::engine
