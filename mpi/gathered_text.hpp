// Shares each rank's text with all ranks.
#pragma once

#include "mpi/communicator.hpp"

#include <string>
#include <vector>

namespace nearstep::mpi {

// Each rank's text, in rank order. Collective; a rank sends and receives twice the logarithm of the
// number of ranks as messages.
std::vector<std::string> gather_text(const mpi::Communicator& world, const std::string& mine);

}  // namespace nearstep::mpi
