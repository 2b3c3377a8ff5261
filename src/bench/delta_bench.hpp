// Measures how fast deltas of 16-bit parameters are encoded and decoded in memory, compared with a
// copy.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

namespace nearstep::bench {

struct DeltaBenchOptions {
    std::size_t parameters = 33'554'432;  // rounded up to whole messages of 16 tiles
    std::vector<std::string> kernels;     // empty: the fastest on this CPU
    int rounds = 9;
};

// Prints one row per share of changed parameters and kernel variant to `out` as it is measured, and
// returns the rows with the keys commit, kernels, parameters, rounds, changed_share, escaped_share,
// bytes_per_parameter, encode_gb_per_s, decode_gb_per_s, digest_gb_per_s, copy_gb_per_s,
// encode_share_of_copy, decode_share_of_copy and verified.
//
// Runs on one thread. A round copies the new parameters, encodes them against the old ones in
// messages of 16 tiles, decodes these into a copy of the old ones with digests, and digests the new
// ones once more. The data exceeds the caches. Rates count 2 bytes per parameter and are medians
// over the rounds; shares are medians of the rounds' shares. Throws ConfigError for invalid
// options, Error if decoding does not restore the parameters or messages differ from the scalar
// kernels'.
nlohmann::json bench_delta(const DeltaBenchOptions& options, std::ostream& out);

}  // namespace nearstep::bench
