// From TOML text to the validated settings of a run.
#pragma once

#include "config/run.hpp"

#include <string>
#include <vector>

namespace nearstep::config {

// Everything that decides a run's settings, as text, so that rank 0 can read it and all ranks
// receive it.
struct Sources {
    std::string config_path{};  // for messages
    std::string config_text{};  // TOML: what to train
    std::string site_path{};    // empty: no site file
    // TOML: where; may set site.name, hosts.*, and the csd keys that describe a machine.
    std::string site_text{};
    // "key=value", value in TOML or a bare word; applied last.
    std::vector<std::string> overrides{};
    // Without it data.train may be empty: a plan trains on nothing.
    bool needs_data = true;
};

// Reads the config file (or none, if its path is empty) and the site file (`site`: a site.toml, a
// folder that holds one, or empty).
// Throws ConfigError if one cannot be read.
Sources read_sources(const std::string& config_path, const std::string& site,
                     const std::vector<std::string>& overrides);

// Defaults, then config, then site, then overrides. Throws ConfigError, in one sentence that names
// file, key and what is allowed, for unknown keys, wrong types, values out of range and impossible
// combinations. Which files and folders exist is checked elsewhere.
Run parse(const Sources& sources);

// Of the library that reads TOML: "3.3.0".
std::string toml_version();

// Checks that need the number of ranks: csd.per_rank, csd.speed, train.global_batch. Throws
// ConfigError.
void validate_for_ranks(const Run& run, int ranks);

// train.steps of settings that print() wrote; `path`: for messages.
std::int64_t steps_of(const std::string& path, const std::string& text);

// The effective settings as a TOML text that parse() reads back to the same Run.
std::string print(const Run& run);

// The table of all keys for --help: key, type, unit, default, meaning; one line each.
std::string describe_keys();

}  // namespace nearstep::config
