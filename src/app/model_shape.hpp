// The shape of a model that another program trains: of any config.json, or of a count of
// parameters.
#pragma once

#include "plan/suggest.hpp"

#include <string>

namespace nearstep::app {

// `given`: a folder with a config.json, such a file, or a count such as 7e9 or 7B. `context`:
// tokens of a sequence; 0: the model's, 2,048 at most. Throws ConfigError.
plan::Task task_of(const std::string& given, int context);

}  // namespace nearstep::app
