// How fast gradients in a GPU's memory are encoded and decoded, beside a copy in that memory.
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
    double keep = 0.01;                    // of topk
    std::string rounding = "nearest";      // of block codes
    Dtype dtype = Dtype::bf16;             // of dense and topk values, and of the gradient
    bool has_error_feedback = false;
    std::string gradient;  // a file of bf16 values, repeated as needed; empty: random ones
    int rounds = 50;
};

// One row per codec, printed to `out` as it is measured and returned with the keys commit, gpu,
// codec, rounding, keep, error_feedback, parameters, rounds, bytes_per_parameter, copy_us,
// copy_tb_per_s, encode_us, decode_us, decode_add_us, encode_over_copy, encode_share_of_bandwidth,
// decode_share_of_bandwidth, decode_add_share_of_bandwidth and verified.
//
// The gradient is bf16. A round copies it in the GPU's memory, encodes it, with the sums of
// squares, decodes that to fp32 values, and adds it to them once more; rounds take two gradients in
// turn, each larger than the GPU's cache by default. Times are medians over the rounds, of events
// around the work. A share is the bytes that must be read and written at least, per second, over
// those that the copy reads and writes. Throws ConfigError if there is no GPU or options that
// cannot be, Error if payloads or sums are not those of the CPU's scalar codec.
nlohmann::json bench_codec_on_gpu(const GpuCodecBenchOptions& options, std::ostream& out);

}  // namespace nearstep::bench
