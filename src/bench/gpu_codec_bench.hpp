// Measures how fast gradients in GPU memory are encoded, compared with a copy there.
#pragma once

#include "base/dtype.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

namespace nearstep::bench {

struct GpuCodecBenchOptions {
    std::size_t parameters = 134'217'728;  // rounded up to whole tiles
    std::vector<std::string> codecs;       // empty: all
    double keep = 0.01;                    // for topk
    std::string rounding = "nearest";      // for block codes
    Dtype dtype = Dtype::bf16;             // of dense and topk values, and of the gradient
    std::string gradient;  // file of bf16 values, repeated as needed; empty: random values
    int rounds = 50;
};

// Prints one row per codec to `out` as it is measured, and returns the rows with the keys commit,
// gpu, codec, rounding, keep, parameters, rounds, bytes_per_parameter, copy_us, copy_tb_per_s,
// encode_us, encode_over_copy, encode_share_of_bandwidth and verified.
//
// The gradient is bf16. A round copies it in GPU memory and encodes it with sums of squares. Rounds
// alternate between two gradients, each larger than the GPU's cache by default. Times are medians
// over the rounds, from GPU events. A share is the rate of the bytes that must be read and written,
// over the copy's rate. Throws ConfigError if there is no GPU or options are invalid, Error if
// payloads differ from the CPU's scalar codec.
nlohmann::json bench_codec_on_gpu(const GpuCodecBenchOptions& options, std::ostream& out);

}  // namespace nearstep::bench
