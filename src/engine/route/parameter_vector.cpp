// Makes the memory of the parameter vector, which the ranks of a node may share. Used by
// resources.cpp.
#include "engine/route/parameter_vector.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::engine {

namespace {

// How a node does without memory that its ranks share.
constexpr memory::SharedUse kSharedParameters = {"parameters",
                                                 R"(set placement.parameters = "replicated")"};

}  // namespace

ParameterGroups parameter_groups(const config::EngineSettings& settings,
                                 const mpi::Topology& nodes) {
    const auto ranks = static_cast<int>(nodes.group_of.size());
    const int together = settings.placement.parameters.ranks();
    ParameterGroups groups;
    groups.holders = mpi::groups_of(nodes, together, config::computing_ranks(settings, ranks));
    groups.spans_nodes = together > nodes.most_beside();
    groups.on_host = groups.spans_nodes ? mpi::each_rank_alone(ranks) : groups.holders;
    groups.with_gpus = together == 1 ? nodes : groups.on_host;
    return groups;
}

memory::Buffer share_memory(const mpi::Communicator& world, const mpi::Communicator& node,
                            std::size_t bytes, const memory::SharedUse& use) {
    std::optional<memory::SharedMemory> memory;
    world.together([&] {
        if (node.rank() == 0 && bytes > 0) {
            memory = memory::SharedMemory::create(bytes, use);
        }
    });
    const std::string path = node.broadcast(memory ? memory->path() : "", 0);
    memory::Buffer mapped;
    world.together([&] {
        if (bytes > 0) {
            mapped = memory ? memory->map() : memory::SharedMemory::open(path, bytes, use).map();
        }
    });
    // The path leads to the first rank's descriptor, which may close once all have opened it.
    return mapped;
}

memory::Buffer make_parameter_vector(const mpi::Communicator& world, const mpi::Topology& sharers,
                                     std::size_t bytes, offload::VectorKind kind,
                                     int storage_ranks) {
    const bool has_all = world.rank() < world.size() - storage_ranks;
    if (kind != offload::VectorKind::whole || sharers.most_beside() == 1) {
        return kind == offload::VectorKind::whole && has_all ? memory::Buffer(bytes)
                                                             : memory::Buffer::untouched(bytes);
    }
    const mpi::Communicator node =
        world.split(sharers.group_of[static_cast<std::size_t>(world.rank())]);
    memory::Buffer shared = share_memory(world, node, has_all ? bytes : 0, kSharedParameters);
    return has_all ? std::move(shared) : memory::Buffer::untouched(bytes);
}

feed::NodePlace make_node_place(const mpi::Communicator& world, const mpi::Topology& sharers,
                                int storage_ranks) {
    const int computing = world.size() - storage_ranks;
    const std::vector<int>& beside = sharers.ranks_beside(world.rank());
    const auto ranks =
        static_cast<int>(std::ranges::count_if(beside, [&](int rank) { return rank < computing; }));
    const mpi::Communicator node =
        world.split(sharers.group_of[static_cast<std::size_t>(world.rank())]);
    const bool computes = world.rank() < computing;
    memory::Buffer notes =
        share_memory(world, node, computes ? static_cast<std::size_t>(ranks) * feed::kNoteBytes : 0,
                     kSharedParameters);
    return {.notes = std::move(notes),
            .rank = sharers.rank_in_group(world.rank()),
            .ranks = computes ? ranks : 1};
}

}  // namespace nearstep::engine
