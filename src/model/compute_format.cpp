#include "model/compute_format.hpp"

#include "base/error.hpp"

#include <string>

namespace nearstep::model {

Dtype compute_format(const config::ModelSettings& settings, const ComputeDevice& device) {
    const std::string& compute = settings.compute;
    if (compute != "auto" && compute != "bf16" && compute != "fp32") {
        throw ConfigError(text("model.compute is \"", compute, "\": choose auto, bf16 or fp32."));
    }
    if (compute == "bf16" && settings.dtype == Dtype::fp16) {
        throw ConfigError(
            "model.compute is bf16 and model.dtype is fp16, whose digits bf16 would drop: set "
            "model.compute to fp32 or model.dtype to bf16.");
    }
    if (compute == "auto" && device.is_gpu()) {
        return settings.dtype;
    }
    const bool is_fast = settings.dtype == Dtype::bf16 && __builtin_cpu_supports("avx512bf16") != 0;
    return compute == "bf16" || (compute == "auto" && is_fast) ? Dtype::bf16 : Dtype::fp32;
}

}  // namespace nearstep::model
