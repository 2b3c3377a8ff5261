#include "engine/state/parameter_vector.hpp"

#include "memory/shared_memory.hpp"

#include <optional>
#include <string>

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
    std::optional<memory::SharedMemory> memory;
    world.together([&] {
        if (node.rank() == 0 && has_all) {
            memory = memory::SharedMemory::create(bytes);
        }
    });
    const std::string path = node.broadcast(memory ? memory->path() : "", 0);
    memory::Buffer vector;
    world.together([&] {
        if (!has_all) {
            vector = memory::Buffer::untouched(bytes);
            return;
        }
        if (!memory) {
            memory = memory::SharedMemory::open(path, bytes);
        }
        vector = memory->map();
    });
    // The path leads to the first rank's descriptor, which may close once all have opened it.
    return vector;
}

}  // namespace nearstep::engine
