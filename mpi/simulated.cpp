// The parts of MPI that differ in a simulation: its ranks were not launched, and they wait inside
// MPI. The build with NEARSTEP_SIMULATE compiles it in place of launch_environment.cpp and
// request_wait_polling.cpp.
#include "mpi/launch.hpp"
#include "mpi/mpi_library.hpp"
#include "mpi/request_state.hpp"

namespace nearstep::mpi {

Launch launch_of_process() { return Launch::ranks; }

int tasks_of_step() { return 1; }

int processes_of_pmi() { return 1; }

int ranks_of_host() { return 1; }

std::vector<std::string> settings_in_force() { return {}; }

// Simulated time passes only while a rank waits inside MPI, so polling would cost simulated time.
// The time limit uses the system's clock, so it does not apply; the simulator reports deadlocks.
void Request::wait() {
    if (state_) {
        check(MPI_Wait(&state_->request, MPI_STATUS_IGNORE));
        state_.reset();
    }
}

}  // namespace nearstep::mpi
