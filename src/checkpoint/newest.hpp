// Remembers where a run's newest checkpoint is. A run may write its checkpoints to any folder, so
// it leaves a record beside its manifest. docs/formats/checkpoint.md describes the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace nearstep::checkpoint {

struct Newest {
    std::string run = {};
    std::int64_t step = 0;
    std::string folder = {};  // absolute
};

// Replaces the record in `place`, a folder of csd.path. It survives a power cut, and is read back.
// Throws IoError.
void write_newest(const std::string& place, const Newest& newest);

// nullopt if there is no record that can be read.
std::optional<Newest> read_newest(const std::string& place);

}  // namespace nearstep::checkpoint
