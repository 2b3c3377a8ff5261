// Loaded before a program: says on stderr which calls of MPI a fork of it makes. HOME_PROCESS is
// the number of the process that trains.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

void say(const char* name) {
    const char* home = std::getenv("HOME_PROCESS");
    if (home == nullptr || std::atoi(home) != getpid()) {
        dprintf(STDERR_FILENO, "a fork calls %s\n", name);
    }
}

}  // namespace

// Not from mpi.h, so that any MPI does: a communicator is a pointer or an int, by its address.
extern "C" int MPI_Comm_free(void* comm) {
    say("MPI_Comm_free");
    return reinterpret_cast<int (*)(void*)>(dlsym(RTLD_NEXT, "MPI_Comm_free"))(comm);
}

extern "C" int MPI_Init_thread(int* count, char*** words, int required, int* provided) {
    say("MPI_Init_thread");
    return reinterpret_cast<int (*)(int*, char***, int, int*)>(dlsym(RTLD_NEXT, "MPI_Init_thread"))(
        count, words, required, provided);
}
