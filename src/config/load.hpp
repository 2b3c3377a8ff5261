// Turns TOML text into the validated settings of a run.
#pragma once

#include "base/named_value.hpp"
#include "config/run_settings.hpp"
#include "config/toml_text.hpp"

#include <string>
#include <vector>

namespace nearstep::config {

// All text that decides a run's settings. Rank 0 reads it and sends it to all ranks.
struct Sources {
    std::string config_path{};  // for messages
    std::string config_text{};  // TOML: what to train, and csd keys of the machine
    std::string site_path{};    // empty: no site file
    // TOML: where to train. May set all keys that describe a machine; most belong only there.
    std::string site_text{};
    // "key=value", with the value in TOML or a bare word; applied last.
    std::vector<std::string> overrides{};
    // Settings of a published model, from its config.json: the defaults of [model]. The config may
    // repeat them.
    std::vector<TomlEntry> model{};
    // If false, data.train may be empty, as for a plan.
    bool needs_data = true;
};

// Reads the config file (none if its path is empty) and the site file (`site`: a site.toml, a
// folder that holds one, or empty). Throws ConfigError if one cannot be read.
Sources read_sources(const std::string& config_path, const std::string& site,
                     const std::vector<std::string>& overrides);

// The value of model.from. Throws ConfigError if a key is unknown or has a wrong value.
std::string model_from(const Sources& sources);

// Applies defaults, site, config and overrides, in this order, then the published model's settings
// that these leave out. Throws ConfigError for unknown keys,
// wrong types, values out of range and impossible combinations, in one sentence with file, key and
// what is allowed. Does not check whether files and folders exist.
RunSettings parse(const Sources& sources);

// Version of the TOML library: "3.3.0".
std::string toml_version();

// Checks csd.per_rank, csd.speed and train.global_batch against the number of ranks. Throws
// ConfigError.
void validate_for_ranks(const RunSettings& run, int ranks);

// Reads [model] from settings written by print() of this or an earlier version. `path` is for
// messages. Throws ConfigError.
ModelSettings stored_model(const std::string& path, const std::string& text);

// Reads train.steps from settings written by print(). `path` is for messages.
std::int64_t steps_of(const std::string& path, const std::string& text);

// Reads csd.path from such settings; empty if they do not set it. `path` is for messages.
std::vector<std::string> state_folders_of(const std::string& path, const std::string& text);

// Writes the effective settings as TOML text. The text's lines, read as overrides, give the same
// RunSettings.
std::string print(const RunSettings& run);

// The effective values of the keys that all ranks of a run have alike, by the reader's names.
std::vector<NamedValue> values_of_run(const RunSettings& run);

// Keys that a config may set, and those that belong to a site alone.
enum class KeyTable { config, site };

// The table of keys for --help, one line each: key, type, unit, default, meaning.
std::string describe_keys(KeyTable table);

}  // namespace nearstep::config
