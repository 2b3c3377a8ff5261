// How fast ranks exchange host memory by MPI: inside a node, and between nodes.
#pragma once

#include "mpi/communicator.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>
#include <string>

namespace nearstep::bench {

struct NetworkBenchOptions {
    // Sizes of a message, powers of 4 from the least on.
    std::size_t least_bytes = std::size_t{4} << 10U;
    std::size_t most_bytes = std::size_t{16} << 20U;
    int rounds = 20;
    int ranks_per_node = 0;        // as mpi::discover_nodes takes it
    std::string site = "unknown";  // name of where this is, for the result
};

// Groups of 2, 4, 8, ... and of all nodes: a rank sends a message to the rank at its place on each
// other node of its group, and gets one from there, by the call that scatters gradients; all groups
// and all ranks do so at once. And, as the dense gradients of a node travel, each rank to each
// other of its node. Where nodes have unequal ranks, those beyond the fewest look on.
//
// A table is printed by rank 0, with a line latency + bytes / rate fitted to each group. Returned
// on all ranks: an array with a row for each group and size (keys bench, row, commit, site, mpi,
// nodes (of a group; 1: inside), ranks_per_node, messages (that a rank sends), message_bytes,
// sent_bytes (by a node; inside by a rank), rounds, repeats, us {median, least, most}, gb_s,
// verified) and one for the group's fit (nodes, ranks_per_node, latency_us (of a message), gb_s,
// largest_miss), which `nearstep plan --calibrate` reads.
//
// A time is the slowest rank's, of `repeats` exchanges one after another; the median is over the
// rounds. Collective. Throws ConfigError with one rank alone, Error if bytes arrive wrong.
nlohmann::json bench_network(const mpi::Communicator& world, const NetworkBenchOptions& options,
                             std::ostream& out);

}  // namespace nearstep::bench
