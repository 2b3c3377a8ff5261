// Reads from the environment whether this process is one of several ranks. Called by
// mpi/session.cpp before MPI starts.
#include "mpi/launch.hpp"
#include "mpi/mpi_library.hpp"

#include <cstdlib>

namespace nearstep::mpi {

namespace {

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

int number(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? 1 : static_cast<int>(std::strtol(value, nullptr, 10));
}

}  // namespace

int tasks_of_step() { return is_set("SLURM_STEP_ID") ? number("SLURM_STEP_NUM_TASKS") : 1; }

int processes_of_pmi() { return number("PMI_SIZE"); }

int ranks_of_host() {
    // Slurm says "4(x2),3" for two hosts with 4 tasks and one with 3.
    return number(is_set("OMPI_COMM_WORLD_LOCAL_SIZE") ? "OMPI_COMM_WORLD_LOCAL_SIZE"
                                                       : "SLURM_STEP_TASKS_PER_NODE");
}

Launch launch_of_process() {
    if (is_set("OMPI_COMM_WORLD_SIZE")) {
        return number("OMPI_COMM_WORLD_SIZE") > 1 ? Launch::ranks : Launch::alone;
    }
    // Without PMIx, the launcher of another MPI may have started this process, also on the hosts of
    // a job of Slurm's.
    const bool has_strangers = processes_of_pmi() > 1 && !is_set("PMIX_NAMESPACE");
    if (!is_set("SLURM_JOB_ID")) {
        return has_strangers              ? Launch::strangers
               : is_set("PMIX_NAMESPACE") ? Launch::ranks
                                          : Launch::alone;
    }
    // With --pty only the first task has the terminal. In a shell of a job, the shell's first
    // program may already have used up what PMI variables name.
    if (is_set("SLURM_PTY_PORT")) {
        return Launch::alone;
    }
    if (tasks_of_step() == 1) {
        return has_strangers ? Launch::strangers : Launch::alone;
    }
    const bool has_pmi2 = is_set("PMI_FD") && is_loaded() && speaks_pmi2();
    return is_set("PMIX_NAMESPACE") || has_pmi2 ? Launch::ranks : Launch::strangers;
}

}  // namespace nearstep::mpi
