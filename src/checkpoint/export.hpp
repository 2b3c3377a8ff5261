// Exports a checkpoint as one HDF5 file with a dataset per parameter, or as a folder of
// safetensors; inspects a checkpoint or an HDF5 export.
#pragma once

#include "base/dtype.hpp"
#include "checkpoint/checkpoint.hpp"

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>

namespace nearstep::checkpoint {

// Streams the masters of the checkpoint at `index_path` into `out_path`: a dataset per parameter
// under its model name, in fp32 or fp16, with attributes config, model, step, commit, site. Uses
// the memory of a few tiles. Writes under a temporary name and renames, which replaces an existing
// `out_path`. Throws ConfigError for a bad checkpoint, a bad path, or bf16, which HDF5 lacks.
void export_checkpoint(const std::string& index_path, const std::string& out_path, Dtype dtype);

// Returns the content of config.json for a checkpoint; empty: do not write one.
using ModelConfig = std::function<std::string(const Description&)>;

// Streams the masters into model.safetensors, or into shards of about `shard_bytes` with an index,
// and writes config.json, so that Hugging Face's from_pretrained() can load the folder. Uses the
// memory of a tile. `folder` must be new or empty. Writes to a temporary folder and renames it.
// Throws ConfigError for a bad checkpoint or a bad folder.
void export_safetensors(const std::string& index_path, const std::string& folder, Dtype dtype,
                        std::size_t shard_bytes, const ModelConfig& config);

// Prints the contents of a checkpoint (index) or an HDF5 export and verifies all checksums but
// those of residuals. Throws ConfigError if the file is neither, or is damaged.
void inspect(const std::string& path, std::ostream& out);

}  // namespace nearstep::checkpoint
