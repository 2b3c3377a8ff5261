// MPI from start to end of the program, and how the program ends when something is wrong.
#pragma once

#include <chrono>

namespace nearstep::mpi {

// The first object in main. Starts MPI (one thread of the program calls it) and installs a
// terminate handler, so that main needs no catch and nothing unwinds past ranks that wait
// elsewhere:
//   a ConfigError, thrown by all ranks alike: rank 0 prints its sentence, all ranks end with exit
//   code 2; anything else, on any rank or thread: prints rank and reason, ends the whole job with
//   exit code 1.
class Session {
public:
    Session(int& argc, char**& argv);
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session();
};

// MPI for a library, which does not own its process: the calling thread is the one that calls MPI
// from now on. Starts MPI if no one did. Throws ConfigError if it was started so that another
// thread alone may call it, or is over.
void start_for_library();
// Ends MPI if start_for_library() started it and all ranks come here within the limit; false if
// some do not.
bool end_for_library(std::chrono::seconds limit);
// Ends the processes of all ranks at once.
[[noreturn]] void abort_ranks(int exit_code);

// One line on the MPI library: "Open MPI 4.1.4".
const char* library_version();

}  // namespace nearstep::mpi
