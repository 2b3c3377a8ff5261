// The index of a checkpoint: what it says about itself, its rank files, and the state seen as one.
#pragma once

#include "checkpoint/checkpoint.hpp"

#include <optional>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

struct Index {
    Description description;
    // One of each per rank.
    std::vector<std::string> files;  // names in the index's folder
    std::vector<std::vector<shard::TileRange>> ranges;
    std::vector<RankFileRecord> records;
};

// Why no checkpoint can be so, as a sentence: tiles that no rank or two ranks hold, more tiles than
// a rank's file has room for, names that lead out of the folder, tensors outside of the parameter
// vector. nullopt if it can.
std::optional<std::string> find_fault(const Index& index);

// Writes a new file, sealed but not synced.
void write_index(const std::string& path, const Index& index);

// Throws ConfigError if the file is missing, is no index, has another version or is damaged.
Index read_index(const std::string& path);

}  // namespace nearstep::checkpoint
