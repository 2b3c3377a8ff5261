// How fast gradient codecs encode and decode in memory, beside the rate of a copy.
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
    std::vector<std::string> kernels;     // empty: the fastest of this CPU
    double keep = 0.01;                   // of topk
    std::string rounding = "nearest";     // of block codes
    Dtype dtype = Dtype::bf16;            // of dense and topk values
    int rounds = 9;
};

// One row per codec and variant of the kernels, printed to `out` as it is measured and returned
// with the keys commit, codec, kernels, rounding, parameters, rounds, bytes_per_parameter,
// encode_gb_per_s, decode_gb_per_s, copy_gb_per_s, encode_share_of_copy, decode_share_of_copy and
// verified.
//
// One thread. A round copies all gradients, encodes them tile by tile, and adds what it
// decodes to the copy, all of it beyond the caches' reach. Rates are 4 bytes of fp32 gradient for
// each parameter per second, of the copy, of encoding and of decode_add alike; they are medians
// over the rounds, a share is the median of the rounds' shares. Throws ConfigError for options that
// cannot be, Error if the payloads or sums are not those of the scalar variant.
nlohmann::json bench_codec(const CodecBenchOptions& options, std::ostream& out);

}  // namespace nearstep::bench
