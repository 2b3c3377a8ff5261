// Measures how fast engines update state in memory, compared with the rate of memory itself.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

namespace nearstep::bench {

struct UpdateBenchOptions {
    std::size_t parameters = 33'554'432;  // rounded up to whole subgroups of 16 tiles
    std::vector<int> threads;             // empty: 1, and all CPUs of this process
    std::vector<std::string> states = {"fp32", "bf16", "q8", "compact"};
    std::vector<std::string> optimizers = {"adamw"};
    std::string engine;  // empty: the fastest on this CPU
    int rounds = 15;
};

// Prints one row per state format, optimizer and thread count to `out` as it is measured, and
// returns the rows with the keys commit, engine, optimizer, state, threads, parameters, rounds,
// bytes_per_parameter, parameters_per_s, update_gb_per_s, in_place_gb_per_s, share_of_in_place,
// huge_page_share and verified.
//
// Threads are pinned and have their own subgroups: state as in storage, bf16 gradients in, bf16
// parameters out, on huge pages. A round updates everything once. For the ceiling it also adds 1 to
// the words of other memory, which moves the same number of bytes, half read and half written.
// Rates are medians over the rounds; the share is the median of the rounds' shares. Throws
// ConfigError for invalid options, Error if the bits differ from the scalar engine's.
nlohmann::json bench_update(const UpdateBenchOptions& options, std::ostream& out);

}  // namespace nearstep::bench
