// The configuration of our models for Hugging Face's transformers.
#pragma once

#include "config/run.hpp"

#include <string>

namespace nearstep::model {

// The content of config.json, with which AutoModelForCausalLM.from_pretrained() loads an export of
// this model. `dtype`: the exported tensors' format.
std::string hugging_face_config(const config::ModelSettings& settings, Dtype dtype);

}  // namespace nearstep::model
