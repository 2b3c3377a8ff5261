// Texts that each rank has, known to all.
#pragma once

#include "mpi/communicator.hpp"

#include <string>
#include <vector>

namespace nearstep::engine {

// The name of the host that this process runs on.
std::string own_host();

// Each rank's text, in rank order. Collective.
std::vector<std::string> gather_text(const mpi::Communicator& world, const std::string& mine);

// Several texts as one, and back.
std::string pack(const std::vector<std::string>& parts);
std::vector<std::string> unpack(const std::string& packed);

}  // namespace nearstep::engine
