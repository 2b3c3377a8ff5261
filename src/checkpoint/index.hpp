// The index of a checkpoint: what it says about itself, its rank files, and the state seen as one.
#pragma once

#include "checkpoint/checkpoint.hpp"

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

// Writes a new file, sealed but not synced.
void write_index(const std::string& path, const Index& index);

// Throws ConfigError if the file is missing, is no index, has another version or is damaged.
Index read_index(const std::string& path);

}  // namespace nearstep::checkpoint
