// The files of a checkpoint folder: their names, and writes that a crash cannot halve.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

// "step-00000020.h5"
std::string index_name(std::int64_t step);

// "step-00000020.attempt-0.rank-00003.h5"
std::string rank_file_name(std::int64_t step, int attempt, int rank);

// Ends the name of a file that is being written.
constexpr const char* kPartial = ".partial";

enum class FileKind { index, rank_file, partial };

struct FileName {
    FileKind kind = FileKind::index;
    std::int64_t step = 0;
    int attempt = 0;  // of a rank file
    int rank = 0;     // of a rank file
    std::string name;
};

// What a file name says; nullopt if no checkpoint has such a file. Partial files are those of
// indexes.
std::optional<FileName> parse_name(const std::string& name);

// The checkpoint files in `folder`, in no order; none if there is no such folder. Throws
// ConfigError if it may not be listed, IoError if that fails.
std::vector<FileName> list_folder(const std::string& folder);

// Whether the file holds what its name says, or the beginning of it that a crash left.
bool is_made_here(const std::string& folder, const FileName& file);

// On return `folder` is there, even after a power cut. Throws ConfigError if it may not be made,
// IoError if that fails.
void make_folder(const std::string& folder);

// Throw IoError.
void sync_file(const std::string& path);
void sync_folder(const std::string& folder);

// The folder a path lies in, "." if it names none.
std::string folder_of(const std::string& path);

// A file that is written as `path` + kPartial and appears as `path` when it is complete. Whatever
// stood under the partial name is removed at the start, and unless commit() was called at the end.
class PartialFile {
public:
    explicit PartialFile(std::string path);
    PartialFile(const PartialFile&) = delete;
    PartialFile& operator=(const PartialFile&) = delete;
    ~PartialFile();

    const std::string& partial_path() const { return partial_path_; }

    // Syncs the file, renames it and syncs its folder. Call it once the file is closed.
    void commit();

private:
    std::string path_;
    std::string partial_path_;
};

}  // namespace nearstep::checkpoint
