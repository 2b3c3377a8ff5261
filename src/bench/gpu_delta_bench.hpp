// Measures how fast deltas are applied to parameters in GPU memory, compared with a copy there.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>

namespace nearstep::bench {

struct GpuDeltaBenchOptions {
    std::size_t parameters = 134'217'728;  // rounded up to whole messages of 16 tiles
    int rounds = 20;
};

// Prints one row per share of changed parameters to `out` as it is measured, and returns the rows
// with the keys commit, gpu, parameters, rounds, changed_share, escaped_share, bytes_per_parameter,
// copy_us, copy_gb_per_s, upload_us, upload_gb_per_s, apply_us, apply_gb_per_s,
// apply_share_of_copy, apply_share_of_bandwidth and verified.
//
// A round copies the new parameters in GPU memory, uploads the messages from pinned host memory,
// and applies them to a copy of the old parameters with digests, 64 messages at a time. Times are
// medians over the rounds, from GPU events; rates count 2 bytes per parameter. The share of
// bandwidth is the rate of the bytes that must move (old and new parameters and the messages) over
// the copy's rate. Throws ConfigError if there is no GPU, Error if the result differs from what the
// CPU encoded.
nlohmann::json bench_delta_on_gpu(const GpuDeltaBenchOptions& options, std::ostream& out);

}  // namespace nearstep::bench
