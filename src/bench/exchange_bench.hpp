// Measures how fast the GPUs of a node exchange gradients and parameters.
#pragma once

#include "mpi/communicator.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>

namespace nearstep::bench {

struct ExchangeBenchOptions {
    std::size_t parameters = 134'217'728;  // rounded up to a whole tile per rank
    int rounds = 20;
};

// Rank 0 prints one row per operation to `out` as it is measured. All ranks get the rows, with the
// keys commit, gpu, nccl, ranks, operation, bytes, rounds, us, bus_gb_s and verified. Operations
// are reduce_scatter (NCCL's, on bf16), group_sum (offload::GpuGroupSum, which a step uses instead:
// it takes fp32 and rounds to bf16 first) and all_gather (16-bit parameters).
//
// Times come from GPU events: the slowest rank of each round, then the median over rounds. The bus
// rate is the least that a GPU must send, bytes x (ranks - 1) / ranks, per second. Collective.
// Throws ConfigError if a rank has no GPU of its own, Error if a result is wrong.
nlohmann::json bench_exchange(const mpi::Communicator& world, const ExchangeBenchOptions& options,
                              std::ostream& out);

}  // namespace nearstep::bench
