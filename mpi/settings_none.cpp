#include "mpi/settings.hpp"

namespace nearstep::mpi {

std::vector<std::string> settings_in_force() { return {}; }

}  // namespace nearstep::mpi
