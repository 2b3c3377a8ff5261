// Notes SIGTERM and SIGUSR1 as a request to end early. Used by the trainer's loop and
// app/commands.cpp.
#include "base/stop_request.hpp"

#include "base/error.hpp"

#include <csignal>

namespace nearstep {

namespace {

volatile std::sig_atomic_t is_requested = 0;  // NOLINT: a handler can reach nothing else

extern "C" void note_request(int) { is_requested = 1; }

}  // namespace

void note_stop_requests() {
    struct sigaction action {};
    action.sa_handler = note_request;
    action.sa_flags = SA_RESTART;
    for (const int signal : {SIGTERM, SIGUSR1}) {
        expects(sigaction(signal, &action, nullptr) == 0, "the signal can be handled");
    }
}

bool is_stop_requested() { return is_requested != 0; }

}  // namespace nearstep
