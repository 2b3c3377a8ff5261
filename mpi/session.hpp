// Starts and ends MPI with the program, and ends all ranks after an error. A rank alone, and a job
// of one rank, need no MPI and do not start it.
#pragma once

#include <chrono>

namespace nearstep::mpi {

// The first object in main. Starts MPI for calls from one thread and installs a terminate handler,
// so that main needs no catch and no destructor waits for ranks that are elsewhere:
//   ConfigError, thrown by all ranks alike: rank 0 prints its sentence; all ranks exit with code 2.
//   Any other exception, on any rank or thread: prints rank and reason; the job exits with code 1.
class Session {
public:
    Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session();
};

// MPI for a library that does not own its process. From now on only the calling thread calls MPI.
// Starts MPI if it is not running. Throws ConfigError if MPI has ended, or if it was started so
// that only another thread may call it.
void start_for_library();
// Ends MPI if start_for_library() started it. Returns false if some rank does not call this within
// the limit.
bool end_for_library(std::chrono::seconds limit);
// Lengthens the short sleeps of this thread, and of those that it starts from now on, as far as
// `ranks` outnumber the `cores` that they share. A rank that waits, here or within MPI, asks and
// sleeps in turn. If many do so as often as one may, they take all cores, and Linux keeps the
// process that started them, which they wait for, from running for minutes.
void lengthen_short_sleeps(int ranks, int cores);
// Whether MPI has started and has not ended. If not, this process is a rank alone.
bool is_running();
// Ends the processes of all ranks at once.
[[noreturn]] void abort_ranks(int exit_code);

}  // namespace nearstep::mpi
