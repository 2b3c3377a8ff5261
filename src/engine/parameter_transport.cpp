#include "engine/parameter_transport.hpp"

#include "base/error.hpp"
#include "engine/gpu_groups.hpp"
#include "engine/parameter_vector.hpp"
#include "memory/gpu.hpp"

#include <algorithm>

namespace nearstep::engine {

namespace {

bool has_copies_within(const mpi::Topology& nodes, const shard::Ownership& owners) {
    return std::any_of(nodes.ranks_of.begin(), nodes.ranks_of.end(), [&](const auto& ranks) {
        return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
            return owners.copy_of(rank) != owners.copy_of(ranks.front());
        });
    });
}

}  // namespace

ParameterTransport::ParameterTransport(const mpi::Communicator& world,
                                       const config::EngineSettings& settings,
                                       const mpi::Topology& nodes, const shard::Ownership& owners,
                                       std::optional<int> device,
                                       std::optional<nccl::Watchdog>& watchdog) {
    if (is_each_alone(nodes)) {
        return;
    }
    const std::optional<int> gpu = memory::gpus() > 0 ? device : std::nullopt;
    obstacle_ = find_obstacle(world, settings, nodes, owners, gpu);
    is_joint_ = obstacle_.empty();
    if (device) {
        transport_ = is_joint_ ? "nccl" : "host";
    }
    if (is_joint_) {
        const mpi::Communicator ranks =
            world.split(nodes.group_of[static_cast<std::size_t>(world.rank())]);
        if (ranks.size() > 1) {
            start_group(ranks, *gpu, settings, watchdog, group_);
        }
    }
}

std::string ParameterTransport::find_obstacle(const mpi::Communicator& world,
                                              const config::EngineSettings& settings,
                                              const mpi::Topology& nodes,
                                              const shard::Ownership& owners,
                                              std::optional<int> gpu) const {
    if (settings.exchange.transport == "mpi") {
        return kTransportSaysSo;
    }
    if (vector_kind(settings, true) == offload::VectorKind::own_tiles) {
        return "no node has all of them";
    }
    // Only ranks of one copy wait for each other's parameters.
    if (has_copies_within(nodes, owners)) {
        return "ranks of a node hold copies of the optimizer state of their own";
    }
    return obstacle_in_groups(world, nodes, gpu);
}

feed::JointCopy ParameterTransport::joint() {
    if (!group_) {
        return {};
    }
    return {
        .rank = group_->rank(),
        .ranks = group_->size(),
        .gather = [this](std::span<const std::byte> mine, std::span<std::byte> all,
                         const memory::Stream& stream) { group_->all_gather(mine, all, stream); }};
}

std::string ParameterTransport::describe() const {
    if (transport_.empty()) {
        return "";
    }
    return is_joint_ ? text(
                           "each GPU of a node takes its part of the parameters from host memory, "
                           "and the rest from the others",
                           nccl_words())
                     : text("each GPU takes all parameters from host memory (", obstacle_, ")");
}

}  // namespace nearstep::engine
