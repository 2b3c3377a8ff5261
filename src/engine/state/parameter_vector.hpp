// The memory of the 16-bit parameters that ranks compute with.
#pragma once

#include "config/engine_settings.hpp"
#include "memory/buffer.hpp"
#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "offload/step_pipeline.hpp"

#include <cstddef>

namespace nearstep::engine {

// Zeroed memory. The last `storage_ranks` have pages only where they write, and share none.
// Collective; throws ConfigError on all ranks alike if a node cannot share memory.
memory::Buffer make_parameter_vector(const mpi::Communicator& world, const mpi::Topology& nodes,
                                     std::size_t bytes, offload::VectorKind kind,
                                     int storage_ranks);

// `is_copied_to_gpus`: each rank computes with its own copy on a GPU, so the ranks of a node need
// only one on the host.
offload::VectorKind vector_kind(const config::EngineSettings& settings, bool is_copied_to_gpus);

}  // namespace nearstep::engine
