// The number format that a model computes in.
#pragma once

#include "base/dtype.hpp"
#include "config/run.hpp"

namespace nearstep::model {

// bf16 or fp32: the format of activations and matrix products. "auto" is bf16 for bf16 parameters
// if the processor multiplies bf16 itself (AVX512_BF16). fp16 parameters always compute in fp32:
// torch's fp16 products on a CPU take a hundred times as long. Throws ConfigError for what cannot
// be.
Dtype compute_format(const config::ModelSettings& settings);

}  // namespace nearstep::model
