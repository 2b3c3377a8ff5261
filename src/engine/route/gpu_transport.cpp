// Finds out which exchanges NCCL can do between GPUs, and starts them. Used by the engine when it
// is made.
#include "engine/route/gpu_transport.hpp"

#include "base/error.hpp"
#include "memory/gpu.hpp"

#include <algorithm>
#include <chrono>

namespace nearstep::engine {

namespace {

constexpr const char* kSettingForbids = "exchange.transport says so";

// Returns words such as " (NCCL 2.28.9)".
std::string nccl_words() { return text(" (NCCL ", nccl::library_version(), ")"); }

mpi::Communicator ranks_beside(const mpi::Communicator& world, const mpi::Topology& groups) {
    return world.split(groups.group_of[static_cast<std::size_t>(world.rank())]);
}

bool is_each_alone(const mpi::Topology& groups) {
    return std::ranges::all_of(groups.ranks_of,
                               [](const auto& ranks) { return ranks.size() == 1; });
}

// Why some group with several ranks cannot exchange between GPUs; empty if all can. The same on all
// ranks. `gpu` is the one this rank would use.
std::string obstacle_in_groups(const mpi::Communicator& world, const mpi::Topology& groups,
                               std::optional<int> gpu) {
    if (world.agree(!gpu)) {
        return "no rank has a GPU for them";  // known without a communicator for each group
    }
    const mpi::Communicator ranks = ranks_beside(world, groups);
    const std::optional<std::string> mine = nccl::find_obstacle(ranks, gpu);
    try {
        world.together([&] {
            if (ranks.size() > 1 && mine) {
                throw ConfigError(*mine);
            }
        });
    } catch (const ConfigError& error) {  // of the lowest rank
        return error.what();
    }
    return "";
}

}  // namespace

GpuTransport::GpuTransport(const mpi::Communicator& world, const config::EngineSettings& settings,
                           const GpuConditions& conditions, std::optional<int> gpu)
    : has_gpu_(gpu.has_value()),
      encodes_on_host_(settings.exchange.transport == config::GpuPath::host ||
                       settings.compress.error_feedback || !conditions.has_kernels) {
    const std::optional<int> usable = memory::gpus() > 0 ? gpu : std::nullopt;
    if (!encodes_on_host_) {
        gradient_gpu_ = usable;
    }
    find_sums(world, settings, conditions.groups, gradient_gpu_);
    find_payloads(world, settings, conditions);
    find_parameters(world, settings, conditions, usable);
}

void GpuTransport::start(DeviceExchange& way, const mpi::Communicator& ranks, int gpu,
                         const config::EngineSettings& settings) {
    if (!watchdog_) {
        watchdog_.emplace();
    }
    way.ranks.emplace(ranks, gpu, *watchdog_, std::chrono::seconds(settings.exchange.timeout_s));
}

// Without NCCL, a group of several ranks sums its gradients on the host.
void GpuTransport::find_sums(const mpi::Communicator& world, const config::EngineSettings& settings,
                             const mpi::Topology& groups, std::optional<int> gpu) {
    if (is_each_alone(groups)) {
        return;
    }
    sums_.is_needed = true;
    sums_.obstacle = settings.exchange.transport == config::GpuPath::mpi
                         ? kSettingForbids
                         : obstacle_in_groups(world, groups, gpu);
    const bool is_alone = groups.ranks_beside(world.rank()).size() == 1;
    if (!sums_.obstacle.empty()) {
        if (settings.exchange.transport == config::GpuPath::nccl) {
            throw ConfigError(text(
                "exchange.transport is \"nccl\", but ", sums_.obstacle,
                ": start as many ranks on each node as it has GPUs, set model.device to \"cuda\" "
                "and build with CUDA and NCCL, or set exchange.transport to \"auto\"."));
        }
        if (!is_alone) {
            gradient_gpu_ = std::nullopt;
        }
        return;
    }
    const mpi::Communicator ranks = ranks_beside(world, groups);
    if (!is_alone) {
        start(sums_, ranks, *gpu, settings);
    }
}

void GpuTransport::find_payloads(const mpi::Communicator& world,
                                 const config::EngineSettings& settings,
                                 const GpuConditions& conditions) {
    if (conditions.groups.groups() == 1) {
        return;
    }
    const bool has_joint = conditions.joint_groups.groups() > 0;
    payloads_.is_needed = true;
    if (settings.exchange.transport == config::GpuPath::mpi) {
        payloads_.obstacle = kSettingForbids;
    } else if (!sums_.obstacle.empty()) {
        payloads_.obstacle = sums_.obstacle;
    } else if (encodes_on_host_) {
        payloads_.obstacle = "they are encoded there";
    } else if (!has_joint && conditions.owners.copies() > 1) {
        payloads_.obstacle =
            text("each goes to ", conditions.owners.copies(), " copies of the optimizer state");
    } else if (conditions.is_shaped) {
        payloads_.obstacle = "the site's rates hold them up";
    } else {
        payloads_.obstacle = has_joint
                                 ? obstacle_in_groups(world, conditions.joint_groups, gradient_gpu_)
                                 : nccl::find_obstacle(world, gradient_gpu_).value_or("");
    }
    if (!payloads_.obstacle.empty()) {
        return;
    }
    if (!has_joint) {
        start(payloads_, world, *gradient_gpu_, settings);
        return;
    }
    const mpi::Communicator ranks = ranks_beside(world, conditions.joint_groups);
    if (ranks.size() > 1) {
        start(payloads_, ranks, *gradient_gpu_, settings);
    }
}

void GpuTransport::find_parameters(const mpi::Communicator& world,
                                   const config::EngineSettings& settings,
                                   const GpuConditions& conditions, std::optional<int> gpu) {
    const mpi::Topology& nodes = conditions.parameters.with_gpus;
    const shard::Ownership& owners = conditions.owners;
    if (is_each_alone(nodes) && !conditions.parameters.spans_nodes) {
        return;
    }
    parameters_.is_needed = true;
    if (settings.exchange.transport == config::GpuPath::mpi) {
        parameters_.obstacle = kSettingForbids;
    } else if (conditions.parameters.spans_nodes) {
        parameters_.obstacle = "no node has all of them";
    } else if (exchange::have_copies_met(owners, nodes)) {
        // Only ranks of one copy wait for each other's parameters.
        parameters_.obstacle = "ranks of a node hold copies of the optimizer state of their own";
    } else {
        parameters_.obstacle = obstacle_in_groups(world, nodes, gpu);
    }
    if (is_joint()) {
        const mpi::Communicator ranks = ranks_beside(world, nodes);
        if (ranks.size() > 1) {
            start(parameters_, ranks, *gpu, settings);
        }
    }
}

feed::JointCopy GpuTransport::joint() {
    nccl::Group* group = parameters_.group();
    if (group == nullptr) {
        return {};
    }
    return {
        .rank = group->rank(),
        .ranks = group->size(),
        .gather = [group](std::span<const std::byte> mine, std::span<std::byte> all,
                          const memory::Stream& stream) { group->all_gather(mine, all, stream); }};
}

std::string GpuTransport::describe_gradients() const {
    std::string words;
    if (sums_.is_needed) {
        words = text("ranks of a node add up their gradients ",
                     sums_.obstacle.empty() ? text("between their GPUs", nccl_words())
                                            : text("in host memory (", sums_.obstacle, ")"));
    }
    if (payloads_.is_needed) {
        words += text(words.empty() ? "" : "; ", "payloads travel to the tiles' owners ",
                      payloads_.obstacle.empty()
                          ? text("from GPU to GPU", nccl_words())
                          : text("through host memory (", payloads_.obstacle, ")"));
    }
    return words;
}

std::string GpuTransport::describe_parameters() const {
    if (parameter_transport().empty()) {
        return "";
    }
    return is_joint() ? text(
                            "each GPU of a node takes its part of the parameters from host memory, "
                            "and the rest from the others",
                            nccl_words())
                      : text("each GPU takes all parameters from host memory (",
                             parameters_.obstacle, ")");
}

double GpuTransport::take_seconds() {
    double seconds = 0;
    for (DeviceExchange* one : {&sums_, &payloads_, &parameters_}) {
        if (nccl::Group* const ranks = one->group()) {
            seconds += ranks->take_seconds();
        }
    }
    return seconds;
}

}  // namespace nearstep::engine
