// A request from outside to end early: SIGTERM or SIGUSR1, as a batch system sends before a job's
// time is over.
#pragma once

namespace nearstep {

// Exit code of a program that ended on request before its work was done: start it again later.
constexpr int kStoppedExitCode = 75;

// From now on these signals do not end the process but are noted. Any thread; once is enough.
void note_stop_requests();

// True once a signal has come to this process. Other ranks may not have got one: agree first.
bool is_stop_requested();

}  // namespace nearstep
