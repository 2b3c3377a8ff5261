#include "model/compute_format.hpp"

#include "base/error.hpp"

namespace nearstep::model {

Dtype compute_format(const config::ModelSettings& settings, const ComputeDevice& device) {
    using config::ProductFormat;
    const ProductFormat compute = settings.compute;
    if (compute == ProductFormat::bf16 && settings.dtype == Dtype::fp16) {
        throw ConfigError(
            "model.compute is bf16 and model.dtype is fp16, whose digits bf16 would drop: set "
            "model.compute to fp32 or model.dtype to bf16.");
    }
    if (compute == ProductFormat::automatic && device.is_gpu()) {
        return settings.dtype;
    }
    const bool is_fast = settings.dtype == Dtype::bf16 && __builtin_cpu_supports("avx512bf16") != 0;
    return compute == ProductFormat::bf16 || (compute == ProductFormat::automatic && is_fast)
               ? Dtype::bf16
               : Dtype::fp32;
}

}  // namespace nearstep::model
