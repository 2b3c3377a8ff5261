// How fast deltas of 16-bit parameters are encoded and decoded in memory, beside the rate of a
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
    std::vector<std::string> kernels;     // empty: the fastest of this CPU
    int rounds = 9;
};

// One row per share of parameters that change and variant of the kernels, printed to `out` as it is
// measured and returned with the keys commit, kernels, parameters, rounds, changed_share,
// escaped_share, bytes_per_parameter, encode_gb_per_s, decode_gb_per_s, digest_gb_per_s,
// copy_gb_per_s, encode_share_of_copy, decode_share_of_copy and verified.
//
// One thread. A round copies the new parameters, encodes them against the old ones into messages of
// 16 tiles, decodes these into a copy of the old ones, digests included, and digests the new ones
// once more by themselves; all of it is beyond the caches' reach. Rates are 2 bytes for each
// parameter per second and medians over the rounds; a share is the median of the rounds' shares.
// Throws ConfigError for options that cannot be, Error if what was decoded is not what was encoded
// or messages are not those of the scalar kernels.
nlohmann::json bench_delta(const DeltaBenchOptions& options, std::ostream& out);

}  // namespace nearstep::bench
