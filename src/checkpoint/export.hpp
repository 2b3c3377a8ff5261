// Exports: one self-contained HDF5 file with a dataset per parameter, or a folder of safetensors;
// and a look into a checkpoint or an HDF5 export.
#pragma once

#include "base/dtype.hpp"
#include "checkpoint/checkpoint.hpp"

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>

namespace nearstep::checkpoint {

// Streams the masters of the checkpoint at `index_path` into `out_path`, a dataset per parameter
// under its model name, in fp32 or fp16, with attributes config, model, step, commit, site. Memory:
// a few tiles. Written under a temporary name and renamed; an existing `out_path` is replaced only
// then. Throws ConfigError for a bad checkpoint, a bad path, or dtype bf16 (HDF5 has no such type).
void export_checkpoint(const std::string& index_path, const std::string& out_path, Dtype dtype);

// The content of config.json for a checkpoint; empty: there is none.
using ModelConfig = std::function<std::string(const Description&)>;

// Streams the masters into model.safetensors, or into shards of at most about `shard_bytes` with
// their index, under the tensors' names, with `config` beside them, as Hugging Face's
// from_pretrained() reads them. Memory: a tile. `folder` is new or empty; its files are written
// beside it and appear together. Throws ConfigError for a bad checkpoint or a bad place.
void export_safetensors(const std::string& index_path, const std::string& folder, Dtype dtype,
                        std::size_t shard_bytes, const ModelConfig& config);

// Prints what a checkpoint (index) or an export holds and verifies all checksums. Throws
// ConfigError if the file is neither or damaged.
void inspect(const std::string& path, std::ostream& out);

}  // namespace nearstep::checkpoint
