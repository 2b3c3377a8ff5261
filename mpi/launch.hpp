// How this process came to be: alone, or as one of several ranks.
#pragma once

namespace nearstep::mpi {

enum class Launch {
    alone,     // by hand, as the only task of a launcher, or by a shell in a job of Slurm's
    ranks,     // as a rank, which finds the others by MPI
    strangers  // by srun or another MPI's launcher as one of several, which MPI cannot join
};

Launch launch_of_process();

// The tasks of this step of Slurm's; 1 outside one.
int tasks_of_step();

// The processes that a launcher which speaks PMI started, such as MPICH's mpiexec; 1 without one.
int processes_of_pmi();

// The ranks on this host, as its launcher says; 1 if it does not.
int ranks_of_host();

}  // namespace nearstep::mpi
