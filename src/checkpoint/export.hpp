// Exports: one self-contained HDF5 file with a dataset per parameter; and a look into either kind
// of file.
#pragma once

#include "base/dtype.hpp"

#include <ostream>
#include <string>

namespace nearstep::checkpoint {

// Streams the masters of the checkpoint at `index_path` into `out_path`, a dataset per parameter
// under its model name, in fp32 or fp16, with attributes config, model, step, commit, site. Memory:
// a few tiles. Written under a temporary name and renamed; an existing `out_path` is replaced only
// then. Throws ConfigError for a bad checkpoint, a bad path, or dtype bf16 (HDF5 has no such type).
void export_checkpoint(const std::string& index_path, const std::string& out_path, Dtype dtype);

// Prints what a checkpoint (index) or an export holds and verifies all checksums. Throws
// ConfigError if the file is neither or damaged.
void inspect(const std::string& path, std::ostream& out);

}  // namespace nearstep::checkpoint
