// Describes the MPI library: which one it is, and what it chose to send messages with.
#pragma once

#include <string>
#include <vector>

namespace nearstep::mpi {

struct Library {
    std::string version;    // "Open MPI v4.1.4"
    std::string transport;  // Open MPI's layer for messages: "ob1", "ucx"; empty: unknown
    std::vector<std::string> networks;  // what the layer may use: "tcp", "vader"; ucx does not tell
};

// Describes the library. It has no version if MPI is not loaded, and no transport unless MPI runs.
// Not collective.
Library describe_library();

// Whether this process has loaded the MPI library.
bool is_loaded();

// Names of the library's settings in force, by MPI's interface for tools, before or while MPI runs;
// none if the library does not have that interface.
std::vector<std::string> settings_in_force();

// Whether MPI can send from and receive into the memory of CUDA devices; unknown if the library
// does not tell.
enum class CudaSupport { no, yes, unknown };
CudaSupport cuda_support();

// Whether MPI finds its ranks by Slurm's PMI-2. Call it before MPI starts.
bool speaks_pmi2();

// "ob1 over tcp and vader".
std::string transport_words(const Library& library);

// "Open MPI v4.1.4, messages by ob1 over tcp and vader", or "no MPI, which one rank does not need".
std::string describe(const Library& library);

}  // namespace nearstep::mpi
