#include "mpi/request_state.hpp"

namespace nearstep::mpi {

// In a simulation time passes only while a rank waits inside MPI, and a deadlock is reported by the
// simulator: polling would cost simulated time, and the limit is of the system's clock.
void Request::wait() {
    if (state_) {
        check(MPI_Wait(&state_->request, MPI_STATUS_IGNORE));
        state_.reset();
    }
}

}  // namespace nearstep::mpi
