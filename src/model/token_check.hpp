// Checks of tokens before they index anything.
#pragma once

#include "config/run.hpp"
#include "model/network.hpp"

#include <cstdint>
#include <span>

namespace nearstep::model {

// Throws Error unless all are in [0, model.vocabulary).
void check_tokens(std::span<const std::int32_t> tokens, const config::ModelSettings& settings);

// Tokens and targets of a micro-batch, and that its sizes agree and fit the model's context.
void check_batch(const MicroBatch& batch, const config::ModelSettings& settings);

}  // namespace nearstep::model
