// The index of a checkpoint: its metadata, its rank files, and virtual datasets of the whole state.
#pragma once

#include "checkpoint/checkpoint.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

struct Index {
    Description description;
    // The two lists have one entry per rank.
    std::vector<std::string> files;  // names in the index's folder
    std::vector<std::vector<shard::TileRange>> ranges;
    std::vector<RankFileRecord> records;
};

// The name of the file of what that rank's program kept.
std::string program_file_of(const Index& index, std::size_t rank);

// A sentence that says why the index is invalid; nullopt if it is valid. Faults are: no parameters,
// a tile that no rank or two ranks hold, more tiles than fit into a rank's file, a file name that
// is not a rank file's, more programs than rank files, a tensor outside the parameter vector, more
// missed updates than updates, a step or loss scale that no run has.
std::optional<std::string> find_fault(const Index& index);

// Writes a new file, with a seal but without a sync. Returns its bytes.
std::vector<std::byte> write_index(const std::string& path, const Index& index);

// Throws ConfigError if the file is missing, damaged, not an index, or of another version.
Index read_index(const std::string& path);

}  // namespace nearstep::checkpoint
