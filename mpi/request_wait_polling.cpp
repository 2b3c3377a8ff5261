#include "base/error.hpp"
#include "mpi/request_state.hpp"

#include <thread>

namespace nearstep::mpi {

void Request::wait() {
    if (!state_) {
        return;
    }
    const std::chrono::seconds limit = state_->limit;
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!test()) {
        if (std::chrono::steady_clock::now() > deadline) {
            state_.release();  // NOLINT: the operation may never complete, so nobody may wait for
                               // it again
            throw MpiError(
                text("Another rank did not take part in a transfer for ", limit.count(),
                     " s: look for the rank that stopped, or raise exchange.timeout_s."));
        }
        std::this_thread::yield();
    }
}

}  // namespace nearstep::mpi
