// Rotary positions (Su et al. 2021), and their scalings for long contexts as Hugging Face's
// transformers computes them: linear, dynamic (NTK-aware), llama3 (Llama 3.1) and yarn (Peng et al.
// 2023). Needs no torch.
#pragma once

#include "config/run_settings.hpp"

#include <string>
#include <vector>

namespace nearstep::model {

struct Rope {
    std::vector<float> frequencies;  // radians per position; one per pair of a head's elements
    double factor = 1;               // of queries and of keys, after the rotation
};

// The rotation for sequences of `columns` tokens; only dynamic scaling depends on it. Throws
// ConfigError for an unusable model.rope_scaling.
Rope rope_of(const config::ModelSettings& settings, int columns);

// model.rope_scaling as JSON on one line, its keys in order, without those that are null. Throws
// ConfigError if it is no JSON object.
std::string rope_scaling_on_one_line(const config::ModelSettings& settings);

}  // namespace nearstep::model
