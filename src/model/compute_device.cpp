#include "model/compute_device.hpp"

#include "base/error.hpp"
#include "model/first_calls.hpp"

#include <ATen/Context.h>
#include <torch/cuda.h>

#include <cstdlib>

namespace nearstep::model {

ComputeDevice choose_device(config::Processor wanted, int local_rank) {
    if (wanted == config::Processor::cpu) {
        return {};
    }
    const at::DeviceIndex gpus = torch::cuda::device_count();
    if (gpus > 0) {
        return {.gpu = local_rank % gpus};
    }
    if (wanted == config::Processor::cuda) {
        throw ConfigError(
            "model.device is \"cuda\" and PyTorch finds no GPU here: run where there is one, with "
            "a "
            "CUDA build of PyTorch, or set model.device to \"cpu\".");
    }
    return {};
}

void repeat_bit_for_bit(const ComputeDevice& device) {
    make_first_calls();
    if (device.is_gpu()) {
        // Attention obeys this only as an error, not as a warning. Then the backward of flash and
        // memory-efficient attention sums in a fixed order, and cuDNN's, which does not, is not
        // used. Torch reads the cuBLAS variable at its first product; it gives every stream its
        // own workspace. Filling fresh memory is off because it costs a pass.
        ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
        at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
        at::globalContext().setDeterministicFillUninitializedMemory(false);
    }
}

}  // namespace nearstep::model
