// How fast deltas are applied to parameters in a GPU's memory, beside a copy in that memory.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>

namespace nearstep::bench {

struct GpuDeltaBenchOptions {
    std::size_t parameters = 134'217'728;  // rounded up to whole messages of 16 tiles
    int rounds = 20;
};

// One row per share of parameters that change, printed to `out` as it is measured and returned with
// the keys commit, gpu, parameters, rounds, changed_share, escaped_share, bytes_per_parameter,
// copy_us, copy_gb_per_s, upload_us, upload_gb_per_s, apply_us, apply_gb_per_s,
// apply_share_of_copy, apply_share_of_bandwidth and verified.
//
// A round copies the new parameters in the GPU's memory, copies the messages there from pinned
// memory of the host, and applies them to a copy of the old parameters, digests included, 64
// messages at a time. Times are medians over the rounds, of events around the work; rates are 2
// bytes for each parameter per second. The share of the bandwidth counts what must be moved at
// least, old and new parameters and the messages, over what the copy moves. Throws ConfigError if
// there is no GPU, Error if what comes out is not what the CPU encoded.
nlohmann::json bench_delta_on_gpu(const GpuDeltaBenchOptions& options, std::ostream& out);

}  // namespace nearstep::bench
