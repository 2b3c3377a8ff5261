// Facts about a run's devices, nodes and paths that the engine gives to clients and reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::trace {

// Whether backward began the update early on the guess that the step is neither clipped nor
// skipped. If the norm proves the guess wrong, the update is repeated; the bits are the same.
enum class Guess : std::uint8_t { none, right, wrong };

// How state and gradients are placed and travel. The same on all ranks except `io` and `gpu`.
struct RunFacts {
    int nodes = 1;          // that compute
    int storage_nodes = 0;  // that do not
    // All nodes that compute have equally many ranks; and where drives are beside storage nodes,
    // too, nodes of one kind have equally many, all of one speed.
    bool has_equal_nodes = true;
    // How many ranks hold one copy of the parameters, sum their gradients before these are encoded,
    // and hold one copy of the optimizer state.
    int parameter_ranks = 1;
    int gradient_ranks = 1;
    int optimizer_ranks = 1;
    int copies = 1;                           // of the optimizer state
    int devices = 0;                          // of all ranks; in mode base, the plain devices
    int drives = 0;                           // of these, on nodes that compute
    int storage_drives = 0;                   // of these, on storage nodes; others are no drives
    std::size_t most_subgroups = 0;           // of one device
    double kept_bytes = 0;                    // of state, of all devices, that a step does not read
    double unwritten_bytes = 0;               // of state that it does not write, less its logs
    std::size_t memory_bytes = 0;             // of this rank's host, for state with spare places
    double gpu_share = 0;                     // of the state, by csd.tiers.gpu
    double memory_share = 0;                  // of the state, by csd.tiers.memory
    double payload_bytes_per_parameter = 0;   // of one gradient payload
    double handover_bytes_per_parameter = 0;  // of all that a device receives
    bool has_dense_sums = false;
    bool encodes_on_gpu = false;           // this rank
    std::size_t gradient_bytes = 0;        // memory for gradients on this rank's GPU
    std::string transport = {};            // "nccl", "mpi" or empty: see GpuTransport
    std::string payload_transport = {};    // the same for payloads between groups
    std::string parameter_transport = {};  // the same for parameters: see GpuTransport
    std::string io = {};                   // how the first device of rank 0 does I/O, there alone
    std::vector<std::string> lines = {};   // how gradients and parameters travel, as sentences

    int all_nodes() const { return nodes + storage_nodes; }
};

}  // namespace nearstep::trace
