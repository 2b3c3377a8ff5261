// Llama (Touvron et al. 2023) and Qwen2: pre-norm decoder with RMS norms, rotary positions, a gated
// hidden layer and, if model.kv_heads says so, several attention heads for each head of keys and
// values. Weights are output x input, as in the published checkpoints.
#pragma once

#include "config/run.hpp"
#include "model/block_function.hpp"
#include "model/geometry.hpp"

#include <vector>

namespace nearstep::model {

// The blocks are "embedding", "layers.0", "layers.1", ..., "head". Throws ConfigError for an
// unusable model.rope_scaling.
Geometry describe_llama(const config::ModelSettings& settings);

std::vector<BlockFunction> make_llama_functions(const config::ModelSettings& settings);

}  // namespace nearstep::model
