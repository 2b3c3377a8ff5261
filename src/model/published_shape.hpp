// The sizes of a published model of any family, for forecasts. Needs no torch.
#pragma once

#include "config/run_settings.hpp"

#include <string>
#include <string_view>

namespace nearstep::model {

// Layers, widths and vocabulary by the config.json of a model. read_hugging_face_config() reads
// what training needs, of fewer families. `path`: for messages. Throws ConfigError if sizes are
// missing or impossible, and for a mixture of experts.
config::ModelSettings read_shape(const std::string& path, std::string_view content);

}  // namespace nearstep::model
