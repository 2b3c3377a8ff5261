// A model's floating-point operations and the peak rates of GPUs.
#pragma once

#include "base/dtype.hpp"
#include "config/run_settings.hpp"

#include <cstddef>
#include <optional>
#include <string>

namespace nearstep::model {

// Floating-point operations of one token's forward and backward without recomputation:
// 6 N + 12 L W T, with N parameters, L layers of width W and T tokens of context (Chowdhery et al.
// 2022, PaLM, appendix B). N leaves out an embedding that is not the output layer, too. The second
// term, for attention, includes what the causal mask hides.
double operations_per_token(const config::ModelSettings& settings, std::size_t parameters);

// Peak operations per second of dense 16-bit matrix products with fp32 sums, from data sheets.
// `gpu` is the name that CUDA reports. nullopt for an unknown GPU or another format.
std::optional<double> peak_operations(const std::string& gpu, Dtype compute);

}  // namespace nearstep::model
