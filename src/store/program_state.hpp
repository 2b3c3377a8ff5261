// State that a program keeps beside the optimizer state, such as running means: a small file per
// rank that is durable before the step is. docs/formats/state-file.md describes the format.
#pragma once

#include "store/lineage.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::store {

// Bytes that belong to a step of a run, and to all later steps until others were written.
struct ProgramState {
    std::string run = {};  // id
    std::int64_t step = 0;
    std::vector<std::byte> bytes = {};
};

// The file's content; nullopt if there is none, or none of ours that is whole. Follows no link.
// Throws IoError if the drive fails.
std::optional<ProgramState> read_program_state(const std::string& path);

// On return the file survives a power cut. A crash before that may leave it unreadable. Follows no
// link, and overwrites no other file: throws ConfigError then. Throws IoError.
void write_program_state(const std::string& path, const std::string& run, std::int64_t step,
                         std::span<const std::byte> bytes);

// What the line has at `step`: what was written last until then, in any of the files. nullopt:
// nothing.
std::optional<ProgramState> find_program_state(std::span<const std::string> paths,
                                               const Lineage& line, std::int64_t step);

// Two such files, of which the newest durable step's is never overwritten.
class ProgramStatePair {
public:
    // The run is at `step` of `line`.
    ProgramStatePair(std::array<std::string, 2> paths, const Lineage& line, std::int64_t step);

    // For a step that is not durable yet.
    void write(const std::string& run, std::int64_t step, std::span<const std::byte> bytes);

private:
    std::array<std::string, 2> paths_;
    std::size_t next_ = 0;  // to be overwritten
};

}  // namespace nearstep::store
