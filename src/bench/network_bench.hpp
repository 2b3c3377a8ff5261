// Measures how fast ranks exchange host memory by MPI, inside a node and between nodes.
#pragma once

#include "mpi/communicator.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>
#include <string>

namespace nearstep::bench {

struct NetworkBenchOptions {
    // Message sizes: least_bytes times powers of 4, up to most_bytes.
    std::size_t least_bytes = std::size_t{4} << 10U;
    std::size_t most_bytes = std::size_t{16} << 20U;
    int rounds = 20;
    int ranks_per_node = 0;        // as in mpi::discover_nodes
    std::string site = "unknown";  // site name for the result
    double link_gb_s = 0;        // that the site expects out of a node, to compare with; 0: unknown
    std::string interface = {};  // between the nodes; its speed is printed, too
};

// Measures groups of 2, 4, 8, ... and of all nodes. Each rank exchanges messages with the ranks at
// its place on the other nodes of its group, by the call that scatters gradients; all groups and
// ranks do so at once. Inside a node every rank exchanges with every other, as dense gradients do.
// If nodes have unequal numbers of ranks, the surplus ranks only watch.
//
// Rank 0 prints a table and, for each group, a fit latency + bytes / rate. All ranks get an array
// with a row per group and size (keys bench, row, commit, site, mpi, transport, nodes (in the
// group; 1: inside a node), ranks_per_node, messages (sent per rank), message_bytes, sent_bytes
// (per node, inside a node per rank), rounds, repeats, us {median, least, most}, gb_s, verified),
// and one per fit (nodes, ranks_per_node, latency_us (per message), gb_s, link_gb_s (null: unknown,
// or inside), largest_miss), which `nearstep plan
// --calibrate` reads.
//
// A time is the slowest rank's, of `repeats` exchanges in a row; the median is over the rounds.
// Collective. Throws ConfigError for a single rank, Error if wrong bytes arrive.
nlohmann::json bench_network(const mpi::Communicator& world, const NetworkBenchOptions& options,
                             std::ostream& out);

}  // namespace nearstep::bench
