// MPI from start to end of the program, and how the program ends when something is wrong.
#pragma once

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

// One line on the MPI library: "Open MPI 4.1.4".
const char* library_version();

}  // namespace nearstep::mpi
