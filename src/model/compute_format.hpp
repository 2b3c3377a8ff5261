// The number format that a model computes in.
#pragma once

#include "base/dtype.hpp"
#include "config/run.hpp"
#include "model/compute_device.hpp"

namespace nearstep::model {

// The format of activations and matrix products. On a GPU, "auto" is the parameters' format. On a
// CPU it is bf16 for bf16 parameters if the CPU has AVX512_BF16, else fp32: torch's fp16 products
// on a CPU are a hundred times slower. Throws ConfigError for an unknown or impossible choice.
Dtype compute_format(const config::ModelSettings& settings, const ComputeDevice& device = {});

}  // namespace nearstep::model
