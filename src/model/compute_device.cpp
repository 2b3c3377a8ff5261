#include "model/compute_device.hpp"

#include "base/error.hpp"

#include <ATen/Context.h>
#include <torch/cuda.h>

namespace nearstep::model {

ComputeDevice choose_device(const std::string& wanted, int local_rank) {
    if (wanted == "cpu") {
        return {};
    }
    const at::DeviceIndex gpus = torch::cuda::device_count();
    if (gpus > 0) {
        return {.gpu = local_rank % gpus};
    }
    if (wanted == "cuda") {
        throw ConfigError(
            "model.device is \"cuda\" and PyTorch finds no GPU here: run where there is one, with "
            "a "
            "CUDA build of PyTorch, or set model.device to \"cpu\".");
    }
    return {};
}

void repeat_bit_for_bit(const ComputeDevice& device) {
    if (device.is_gpu()) {
        // A warning, not an error, where torch knows of none. Filling fresh memory costs a pass.
        at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
        at::globalContext().setDeterministicFillUninitializedMemory(false);
    }
}

}  // namespace nearstep::model
