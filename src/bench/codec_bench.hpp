// Measures how fast gradient codecs encode and decode in memory, compared with a copy.
#pragma once

#include "base/dtype.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

namespace nearstep::bench {

struct CodecBenchOptions {
    std::size_t parameters = 33'554'432;  // rounded up to whole tiles
    std::vector<std::string> codecs;      // empty: all
    std::vector<std::string> kernels;     // empty: the fastest on this CPU
    double keep = 0.01;                   // for topk
    std::string rounding = "nearest";     // for block codes
    Dtype dtype = Dtype::bf16;            // of dense and topk values
    int rounds = 9;
};

// Prints one row per codec and kernel variant to `out` as it is measured, and returns the rows with
// the keys commit, codec, kernels, rounding, parameters, rounds, bytes_per_parameter,
// encode_gb_per_s, decode_gb_per_s, copy_gb_per_s, encode_share_of_copy, decode_share_of_copy and
// verified.
//
// Runs on one thread. A round copies all gradients, encodes them tile by tile, and adds the decoded
// values to the copy. The data exceeds the caches. All rates count 4 bytes of fp32 gradient per
// parameter and are medians over the rounds; shares are medians of the rounds' shares. Throws
// ConfigError for invalid options, Error if payloads or sums differ from the scalar variant's.
nlohmann::json bench_codec(const CodecBenchOptions& options, std::ostream& out);

}  // namespace nearstep::bench
