#include "engine/state/parameter_vector.hpp"

#include "memory/shared_memory.hpp"

#include <optional>
#include <string>

namespace nearstep::engine {

memory::Buffer make_parameter_vector(const mpi::Communicator& world, const mpi::Topology& nodes,
                                     std::size_t bytes, offload::VectorKind kind,
                                     int storage_ranks) {
    const bool has_all = world.rank() < world.size() - storage_ranks;
    if (kind != offload::VectorKind::shared_in_node) {
        return kind == offload::VectorKind::whole && has_all ? memory::Buffer(bytes)
                                                             : memory::Buffer::untouched(bytes);
    }
    const mpi::Communicator node =
        world.split(nodes.group_of[static_cast<std::size_t>(world.rank())]);
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

offload::VectorKind vector_kind(const config::EngineSettings& settings, bool is_copied_to_gpus) {
    switch (config::placement_of(settings).parameters) {
        case config::Sharding::replicated:
            return is_copied_to_gpus ? offload::VectorKind::shared_in_node
                                     : offload::VectorKind::whole;
        case config::Sharding::node:
            return offload::VectorKind::shared_in_node;
        case config::Sharding::global:
            return offload::VectorKind::own_tiles;
        case config::Sharding::automatic:
            break;
    }
    return offload::VectorKind::whole;
}

}  // namespace nearstep::engine
