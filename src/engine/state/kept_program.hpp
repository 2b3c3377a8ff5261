// Brings each rank what a program kept with a step of the state.
#pragma once

#include "engine/restart/start.hpp"
#include "mpi/communicator.hpp"
#include "store/lineage.hpp"
#include "store/program_state.hpp"

#include <cstdint>
#include <vector>

namespace nearstep::engine {

// Returns what this rank's program kept at `step` of the line; without bytes, nothing was kept. A
// file is read by a rank whose node sees it. Collective. Throws IoError if a file changed since the
// search.
store::ProgramState read_kept_program(const mpi::Communicator& world, const Start& start,
                                      const ProgramsAt& at, const store::Lineage& line,
                                      std::int64_t step);

// Whose program, of those that a checkpoint has, this rank goes on with: its own if it has as many
// as ranks compute now and all kept something or none did, else rank 0's.
int program_of_checkpoint(const std::vector<store::ProgramRecord>& programs, int rank,
                          int computing);

}  // namespace nearstep::engine
