// The number format that a model computes in.
#pragma once

#include "base/dtype.hpp"
#include "config/run.hpp"
#include "model/compute_device.hpp"

namespace nearstep::model {

// The format of activations and matrix products. On a GPU "auto" is that of the parameters. On a
// CPU it is bf16 for bf16 parameters if the processor multiplies bf16 itself (AVX512_BF16), else
// fp32: torch's fp16 products on a CPU take a hundred times as long. Throws ConfigError for what
// cannot be.
Dtype compute_format(const config::ModelSettings& settings, const ComputeDevice& device = {});

}  // namespace nearstep::model
