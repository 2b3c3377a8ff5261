// How much of a GPU's arithmetic a model uses.
#pragma once

#include "base/dtype.hpp"
#include "config/run.hpp"

#include <cstddef>
#include <optional>
#include <string>

namespace nearstep::model {

// Floating-point operations of a token's forward and backward without recomputing:
// 6 N + 12 L W T, with N parameters, L layers of width W and T tokens of context (Chowdhery et al.
// 2022, PaLM, appendix B; the second term, attention's, counts what the causal mask hides, too).
double operations_per_token(const config::ModelSettings& settings, std::size_t parameters);

// Dense 16-bit matrix products with fp32 sums, per second, by the name that CUDA gives: the makers'
// data sheets, without sparsity. None: not known, or products of another format.
std::optional<double> peak_operations(const std::string& gpu, Dtype compute);

}  // namespace nearstep::model
