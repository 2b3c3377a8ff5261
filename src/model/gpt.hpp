// GPT-2 (Radford et al. 2019): pre-norm decoder, learned positions, output layer tied to the token
// embedding unless model.tied is false. Weights are input x output, as in the published
// checkpoints.
#pragma once

#include "config/run.hpp"
#include "model/block_function.hpp"
#include "model/geometry.hpp"

#include <vector>

namespace nearstep::model {

// The blocks are "embedding", "h.0", "h.1", ..., "head".
Geometry describe_gpt(const config::ModelSettings& settings);

std::vector<BlockFunction> make_gpt_functions(const config::ModelSettings& settings);

}  // namespace nearstep::model
