// A request to end early: SIGTERM or SIGUSR1, which a batch system sends before a job's time limit.
#pragma once

namespace nearstep {

// Exit code of a program that stopped on request before it was done. It can be started again.
constexpr int kStoppedExitCode = 75;

// From now on these signals are recorded and do not end the process. Any thread may call it, and
// once is enough.
void note_stop_requests();

// True once this process got a signal. Other ranks may not have got one, so ranks must agree first.
bool is_stop_requested();

}  // namespace nearstep
