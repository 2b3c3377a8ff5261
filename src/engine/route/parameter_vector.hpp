// The memory of the 16-bit parameters that ranks compute with.
#pragma once

#include "config/engine_settings.hpp"
#include "memory/buffer.hpp"
#include "memory/shared_memory.hpp"
#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "offload/step_pipeline.hpp"

#include <cstddef>

namespace nearstep::engine {

// The groups of ranks that hold one copy of the parameters together.
struct ParameterGroups {
    mpi::Topology holders;     // of placement.parameters
    bool spans_nodes = false;  // then each of them keeps some tiles
    // Ranks of a node that may share one vector in the host's memory, because they hold one copy
    // there, or because each of them computes with a copy of its own on a GPU.
    mpi::Topology on_host;
    mpi::Topology with_gpus;
};
ParameterGroups parameter_groups(const config::EngineSettings& settings,
                                 const mpi::Topology& nodes);

// Zeroed memory that the ranks of `node` share. `bytes` is 0 on a rank that takes no part.
// Collective over both; throws ConfigError on all ranks alike.
memory::Buffer share_memory(const mpi::Communicator& world, const mpi::Communicator& node,
                            std::size_t bytes, const memory::SharedUse& use);

// Zeroed memory, shared by the ranks of each group of `sharers`, unless it is of another kind than
// whole. The last `storage_ranks` have pages only where they write, and share none. Collective;
// throws ConfigError on all ranks alike if a node cannot share memory.
memory::Buffer make_parameter_vector(const mpi::Communicator& world, const mpi::Topology& sharers,
                                     std::size_t bytes, offload::VectorKind kind,
                                     int storage_ranks);

}  // namespace nearstep::engine
