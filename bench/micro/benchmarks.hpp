// Benchmarks of nearstep's parts, for Google Benchmark. Every benchmark verifies its result first,
// and throws Error if a bit is wrong. Rates are in bytes of the data that goes in; "copy" and "in
// place" are the ceilings.
#pragma once

#include "arith/gradient_lane.hpp"
#include "mpi/communicator.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace nearstep::bench {

struct MicroOptions {
    std::size_t parameters = 33'554'432;  // rounded up to whole tiles; exceeds the caches
    double keep = 0.01;                   // for topk
    arith::Rounding rounding = arith::Rounding::nearest;  // of block codes
    std::string gradient;  // for gpu_codec: file of bf16 values; empty: random ones
    bool has_all =
        false;  // also instruction sets that are not the CPU's fastest, and all optimizers
};

// The variants to measure; the last one is the fastest.
template <typename Variant>
std::span<const Variant> variants_of(const MicroOptions& options, const std::vector<Variant>& all) {
    return options.has_all ? std::span(all) : std::span(all).last(1);
}

// codec/NAME/KERNELS/encode and /decode: fp32 gradients, tile by tile, on one thread; codec/copy.
void add_codecs(const MicroOptions& options);

// delta/SHARE CHANGED/KERNELS/encode and /decode: new 16-bit parameters against the old ones, in
// messages of 16 tiles, on one thread; delta/copy and delta/digest.
void add_deltas(const MicroOptions& options);

// update/STATE/OPTIMIZER/ENGINE: state as in storage, bf16 gradients in, bf16 parameters out, on
// one thread and on all cores; update/in_place adds 1 to memory.
void add_updates(const MicroOptions& options);

// gpu_codec/NAME: bf16 gradients in the memory of GPU 0, encoded with sums of squares; inputs
// alternate, so that none is in the GPU's cache; gpu_codec/copy. Nothing without a GPU.
void add_gpu_codecs(const MicroOptions& options);

// exchange/OPERATION: between the GPUs of the ranks, which have one each. The time is the slowest
// rank's, of operations that are queued together as in training; the rate is that of the bytes that
// must leave a GPU. Collective; throws ConfigError if GPUs cannot exchange.
void add_exchanges(const mpi::Communicator& world, const MicroOptions& options);

}  // namespace nearstep::bench
