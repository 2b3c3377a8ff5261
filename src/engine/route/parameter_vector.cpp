// Makes the memory of the parameter vector, which the ranks of a node may share. Used by
// resources.cpp.
#include "engine/route/parameter_vector.hpp"

#include <optional>
#include <string>
#include <utility>

namespace nearstep::engine {

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
    memory::Buffer shared =
        share_memory(world, node, has_all ? bytes : 0,
                     {"parameters", R"(set placement.parameters = "replicated")"});
    return has_all ? std::move(shared) : memory::Buffer::untouched(bytes);
}

}  // namespace nearstep::engine
