// Reads and writes the config.json of models for Hugging Face's transformers. Needs no torch.
#pragma once

#include "config/run_settings.hpp"
#include "config/toml_text.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace nearstep::model {

// The settings that the config.json of a GPT-2, Llama or Qwen2 gives keys of [model]. `path`: for
// messages. Throws ConfigError if it is no JSON object, lacks a key, or asks for something that our
// networks do not have.
std::vector<config::TomlEntry> read_hugging_face_config(const std::string& path,
                                                        std::string_view content);

// The setting that the published model's generation_config.json gives, for exports. Throws
// ConfigError if it is no JSON object.
std::vector<config::TomlEntry> read_generation_config(const std::string& path,
                                                      std::string_view content);

// Throws ConfigError if model.token_ids or model.generation_config is not what an export can write.
void check_export_settings(const config::ModelSettings& settings);

// The content of generation_config.json; empty: the model has none.
std::string generation_config(const config::ModelSettings& settings);

// The content of config.json, with which AutoModelForCausalLM.from_pretrained() loads an export of
// this model. A llama with model.qkv_bias is a Qwen2. `dtype`: the exported tensors' format.
std::string hugging_face_config(const config::ModelSettings& settings, Dtype dtype);

}  // namespace nearstep::model
