// What a run says of its GPUs.
#pragma once

#include "train/gpu_share.hpp"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>

namespace nearstep::train {

// Of all ranks' tokens per second: the share of their GPUs' peak that the model's operations take;
// none without a peak.
std::optional<double> flop_utilisation(const GpuReport& report, double tokens_per_s,
                                       double operations_per_token, int ranks);

// "GPU NVIDIA H200: ...", for the end of a run.
std::string describe(const GpuReport& report, std::optional<double> utilisation);

nlohmann::json to_json(const GpuReport& report);

}  // namespace nearstep::train
