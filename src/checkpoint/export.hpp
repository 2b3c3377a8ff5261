// Exports a checkpoint as one HDF5 file with a dataset per parameter, or as a folder of
// safetensors; inspects a checkpoint or an HDF5 export.
#pragma once

#include "base/dtype.hpp"
#include "checkpoint/checkpoint.hpp"
#include "mpi/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

// Facts about a tensor that its shape does not tell.
struct TensorNote {
    std::string layout = {};             // names of the dimensions: "output, input"; may be empty
    std::vector<std::string> ties = {};  // other names of the same parameter
};

// Texts of a model that an export writes. An empty one is not written.
struct ModelTexts {
    std::string config = {};                       // config.json
    std::string generation_config = {};            // generation_config.json
    std::map<std::string, TensorNote> notes = {};  // by a tensor's name
};

// Returns what belongs to a checkpoint.
using TextsOf = std::function<ModelTexts(const Description&)>;

// A tensor that the checkpoint does not hold, such as a frozen parameter or a buffer.
struct OtherTensor {
    std::string name;
    std::string dtype;                // as safetensors writes it: "F32", "I64", "BOOL"
    std::vector<std::int64_t> shape;  // row-major
    std::size_t bytes = 0;
    // Called once, when the tensor is written. Its result stays valid until the next call of any.
    std::function<std::span<const std::byte>()> content;
};

// The optimizer's moments of each parameter, in fp32.
enum class Moments { left_out, written };

struct ExportSettings {
    Dtype dtype = Dtype::fp32;
    Moments moments = Moments::left_out;
};

// Both kinds of export are collective: the ranks write at once and see the same folders. `texts` is
// called on rank 0. All ranks give the same `others`.

// Streams the masters of the checkpoint at `index_path`, and after them `others` as they are, into
// `out_path`: a dataset per tensor. Writes the texts into files beside it, of which none may be
// another model's. Uses the memory of a few tiles per thread. Writes under a temporary name and
// renames, which replaces an existing `out_path`. Throws ConfigError for a bad checkpoint, a bad
// path, or a type that HDF5 lacks, such as bf16.
void export_checkpoint(const mpi::Communicator& world, const std::string& index_path,
                       const std::string& out_path, const ExportSettings& settings,
                       const TextsOf& texts, std::span<const OtherTensor> others = {});

// Streams the masters, and after them `others` as they are, into model.safetensors, or into shards
// of about `shard_bytes` with an index, and writes the texts, so that Hugging Face's
// from_pretrained() can load the folder. A rank writes whole shards, in the memory of a tile.
// `folder` must be new or empty. Writes to a temporary folder and renames it. Throws ConfigError
// for a bad checkpoint, a bad folder, or a name that two tensors have.
void export_safetensors(const mpi::Communicator& world, const std::string& index_path,
                        const std::string& folder, Dtype dtype, std::size_t shard_bytes,
                        const TextsOf& texts, std::span<const OtherTensor> others = {});

// Prints the contents of a checkpoint (index) or an HDF5 export and verifies all checksums but
// those of residuals. Throws ConfigError if the file is neither, or is damaged.
void inspect(const std::string& path, std::ostream& out);

}  // namespace nearstep::checkpoint
