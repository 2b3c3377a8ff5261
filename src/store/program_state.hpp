// State that a program keeps beside the optimizer state, such as running means: a small file per
// rank that is durable before the step is. docs/formats/state-file.md describes the format.
#pragma once

#include "store/lineage.hpp"
#include "store/storage.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::store {

// The first line of such a file.
constexpr std::string_view kProgramMagic = "nearstep program state 1\n";

// Bytes that belong to a step of a run, and to all later steps until others were written.
struct ProgramState {
    std::string run = {};  // id
    std::int64_t step = 0;
    std::vector<std::byte> bytes = {};
    std::string path = {};  // of the file that holds them; empty: none
};

// The record of a program's state in a manifest or the index of a checkpoint, by which no other
// state is taken for it.
struct ProgramRecord {
    std::int64_t step = 0;    // from which on it holds
    std::uint64_t bytes = 0;  // 0: the program kept nothing
    std::uint64_t xxh3 = 0;   // of run, step and bytes

    friend bool operator==(const ProgramRecord&, const ProgramRecord&) = default;
};

ProgramRecord record_of(const ProgramState& state);

// False for values that no run writes, behind whatever checksum.
bool is_possible(const ProgramRecord& record);

// The record that holds at `step`, of those that a manifest lists; null: it lists none for it.
const ProgramRecord* record_at(const std::vector<ProgramRecord>& records, std::int64_t step);

// The file's content; nullopt if there is none, or none of ours that is whole. Follows no link.
// Throws IoError if the drive fails.
std::optional<ProgramState> read_program_state(const std::string& path);

// The first of the files that has what the record names, and nothing else; nullopt: none has.
std::optional<ProgramState> read_program_state(std::span<const std::string> paths,
                                               const ProgramRecord& record);

// On return the file survives a power cut; a crash before that leaves the old content. Follows no
// link, and overwrites no other file: throws ConfigError then. Throws IoError. `storage`: as for a
// File.
ProgramRecord write_program_state(const std::string& path, const std::string& run,
                                  std::int64_t step, std::span<const std::byte> bytes,
                                  Storage* storage = nullptr);

// Finds the program's state of this line at `step` for manifests of version 0.2.0, which have no
// records: the last that was written until then, in any of the files; nullopt if there is none.
std::optional<ProgramState> find_program_state(std::span<const std::string> paths,
                                               const Lineage& line, std::int64_t step);

// Two such files, of which the newest durable step's is never overwritten.
class ProgramStatePair {
public:
    // `storage`: as for a File.
    explicit ProgramStatePair(std::array<std::string, 2> paths, Storage* storage = nullptr)
        : paths_(std::move(paths)), storage_(storage) {}

    // Throws as write_program_state() if one of the files is none that may be overwritten.
    void expect_replaceable() const;

    // The run goes on from `step`, with which this was kept, or nothing. What another file holds is
    // written to one of these, which then survives a power cut.
    void begin(const std::string& run, std::int64_t step, const ProgramState& state);

    // Keeps the program's state for a step that is not durable yet. Writes nothing if the bytes are
    // those of the step before.
    void write(const std::string& run, std::int64_t step, std::span<const std::byte> bytes);

    // The records that the manifest lists when it names the step: newest first, at most two.
    const std::vector<ProgramRecord>& records() const { return records_; }

private:
    std::array<std::string, 2> paths_;
    Storage* storage_;
    std::vector<ProgramRecord> records_;
    std::uint64_t content_ = 0;  // XXH3 of the newest bytes
    std::size_t next_ = 0;       // to be overwritten
};

}  // namespace nearstep::store
