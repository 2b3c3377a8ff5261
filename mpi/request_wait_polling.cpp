// Waits for MPI requests by polling, with a time limit that counts the time awake. Used by
// communicator.cpp. The simulator waits inside MPI instead (simulated.cpp).
#include "base/awake_time.hpp"
#include "base/error.hpp"
#include "base/machine.hpp"
#include "mpi/lost_hosts.hpp"
#include "mpi/request_state.hpp"

#include <chrono>
#include <thread>

namespace nearstep::mpi {

namespace {

// A wait polls at first without a pause, for the sake of short messages. A longer one leaves the
// core to the threads that update the state and to other ranks.
constexpr std::chrono::microseconds kEager{500};
constexpr std::chrono::microseconds kPause{20};

}  // namespace

void Request::wait() {
    if (!state_) {
        return;
    }
    const Patience patience = state_->patience;
    AwakeTime time;
    while (true) {
        // Before the test: a process that was stopped in between must not give up what has ended.
        const auto waited = time.look();
        if (test()) {
            return;
        }
        if (waited > patience.limit || *patience.has_ended) {
            *patience.has_ended = true;
            throw MpiError(
                text("Another rank did not take part in a transfer for ", patience.limit.count(),
                     " s (seen on host ", own_host(), describe_silent_hosts(),
                     "): look for the rank that stopped or the link that is down, or raise "
                     "exchange.timeout_s."));
        }
        if (waited < kEager) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(kPause);
        }
    }
}

}  // namespace nearstep::mpi
