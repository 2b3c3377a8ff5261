// How fast the GPUs of a node exchange gradients and parameters.
#pragma once

#include "mpi/communicator.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>

namespace nearstep::bench {

struct ExchangeBenchOptions {
    std::size_t parameters = 134'217'728;  // rounded up to a whole tile for each rank
    int rounds = 20;
};

// One row per operation, printed to `out` by rank 0 as it is measured and returned on all ranks
// with the keys commit, gpu, nccl, ranks, operation, bytes, rounds, us, bus_gb_s and verified:
// reduce_scatter (NCCL's, of bf16), group_sum (offload::GpuGroupSum: what a step does instead,
// which takes fp32 and rounds it to bf16 first) and all_gather (of 16-bit parameters).
//
// A time is the median over the rounds of the slowest rank's, of events around the work. The bus
// rate is bytes x (ranks - 1) / ranks, what a GPU must send at least, over that. Collective; every
// rank has a GPU of its own. Throws ConfigError if it has not, Error if a result is wrong.
nlohmann::json bench_exchange(const mpi::Communicator& world, const ExchangeBenchOptions& options,
                              std::ostream& out);

}  // namespace nearstep::bench
