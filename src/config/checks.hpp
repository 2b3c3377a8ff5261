// Checks on combinations of keys.
#pragma once

#include "config/run_settings.hpp"

#include <map>
#include <string>

namespace nearstep::config {

// The places where keys were set, for messages. Keys left at their default are not in it.
using Origins = std::map<std::string, std::string>;

// Throws ConfigError.
void refuse_if(bool is_wrong, const std::string& sentence);

// Throws ConfigError for sizes of a model that do not fit together, and for keys that its
// architecture does not have.
void check_model(const ModelSettings& model, const Origins& origins);

// Throws ConfigError for values that are allowed alone but not together.
void check_combinations(const RunSettings& run, const Origins& origins);

// Throws ConfigError if there is no data to train or evaluate on.
void check_data(const RunSettings& run, const Origins& origins);

}  // namespace nearstep::config
