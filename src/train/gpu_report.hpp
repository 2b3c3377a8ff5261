// What a run reports about its GPUs.
#pragma once

#include "train/gpu_share.hpp"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>

namespace nearstep::train {

// Share of the peak of all ranks' GPUs that the model's operations use. `tokens_per_s` is of all
// ranks. None if the peak is unknown.
std::optional<double> flop_utilisation(const GpuReport& report, double tokens_per_s,
                                       double operations_per_token, int ranks);

// "GPU NVIDIA H200: ...", printed at the end of a run.
std::string describe(const GpuReport& report, std::optional<double> utilisation);

nlohmann::json to_json(const GpuReport& report);

}  // namespace nearstep::train
