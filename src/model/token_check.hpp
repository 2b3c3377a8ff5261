// Checks tokens before they are used as indices.
#pragma once

#include "config/run.hpp"
#include "model/network.hpp"

#include <cstdint>
#include <span>

namespace nearstep::model {

// Throws Error unless all are in [0, model.vocabulary).
void check_tokens(std::span<const std::int32_t> tokens, const config::ModelSettings& settings);

// Checks a micro-batch's tokens and targets, and that its sizes agree and fit model.context.
void check_batch(const MicroBatch& batch, const config::ModelSettings& settings);

}  // namespace nearstep::model
