// The settings of the MPI library.
#pragma once

#include <string>
#include <vector>

namespace nearstep::mpi {

// Names of the settings in force, by MPI's interface for tools, before or while MPI runs; none if
// the library does not have that interface.
std::vector<std::string> settings_in_force();

}  // namespace nearstep::mpi
