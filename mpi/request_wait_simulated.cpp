#include "mpi/request_state.hpp"

namespace nearstep::mpi {

// Simulated time passes only while a rank waits inside MPI, so polling would cost simulated time.
// The time limit uses the system's clock, so it does not apply; the simulator reports deadlocks.
void Request::wait() {
    if (state_) {
        check(MPI_Wait(&state_->request, MPI_STATUS_IGNORE));
        state_.reset();
    }
}

}  // namespace nearstep::mpi
