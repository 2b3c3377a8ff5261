// The files of a checkpoint folder: their names, and atomic writes.
#pragma once

#include "base/error.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

// Returns a name such as "step-00000020.h5".
std::string index_name(std::int64_t step);

// Returns a name such as "step-00000020.attempt-0.rank-00003.h5".
std::string rank_file_name(std::int64_t step, int attempt, int rank);

// "step-00000020.attempt-0.rank-00003.program": what the rank's program kept.
std::string program_file_name(std::int64_t step, int attempt, int rank);
// "step-00000020.program": the same of rank 0, beside an index of version 0.2.0.
std::string old_program_file_name(std::int64_t step);
// "step-00000020.extra.json": the program's own data, which the Python package writes.
std::string extra_file_name(std::int64_t step);

// Suffix of the name of a file that is being written.
constexpr const char* kPartial = ".partial";

// Permissions of a checkpoint's files, less what the umask takes: as private as state files.
constexpr mode_t kCheckpointMode = 0640;

enum class FileKind { index, rank_file, program, extra, partial };

struct FileName {
    FileKind kind = FileKind::index;
    std::int64_t step = 0;
    int attempt = 0;  // of a rank file or a program's
    int rank = 0;     // the same
    std::string name;
};

// Parses a file name; nullopt if it is not a checkpoint file's. Only indexes have partial files.
std::optional<FileName> parse_name(const std::string& name);

// The checkpoint files in `folder`, unordered; empty if the folder does not exist. Throws
// ConfigError if listing is not permitted, IoError if it fails otherwise.
std::vector<FileName> list_folder(const std::string& folder);

// True if nearstep wrote the file for this user: it is a plain file (base/plain_file.hpp) with the
// format of its name, perhaps cut short by a crash.
bool is_made_here(const std::string& folder, const FileName& file);

// Creates `folder` durably: it survives a power cut. Throws PathError if that is not permitted,
// IoError if it fails otherwise.
void make_folder(const std::string& folder);

// Throws throw_path_error()'s error "Cannot write `path` (reason): ...", which says how much room
// it needs, unless `bytes` is 0, what to do, and that what was saved before is whole.
[[noreturn]] void refuse_write(const std::string& path, int code, std::size_t bytes = 0,
                               const std::string& reason = {});

// The system's reason, or HDF5's own sentence without its full stop.
std::string reason_of(const Hdf5Error& error);

// Runs `write`, which writes the file `path`. An Hdf5Error in it becomes refuse_write()'s error.
void report_unwritten(const std::string& path, std::size_t bytes,
                      const std::function<void()>& write);

// Runs `work` of a run that has begun. A PathError in it, as of a full disk, becomes an IoError: a
// ConfigError tells that nothing was changed.
void as_fault_of_run(const std::function<void()>& work);

// Writes a file, or a folder's entries, through to the drive. Throws refuse_write()'s errors.
void sync_file(const std::string& path);
void sync_folder(const std::string& folder);

// Lets the next reader of a synced file get what the drive holds, not what memory still keeps,
// where the file system can tell them apart.
void drop_cached(const std::string& path);

// Throws IoError: the file that was just written, `path`, is another one when it is read. `why`: a
// sentence about it, or empty.
[[noreturn]] void refuse_read_back(const std::string& path, const std::string& why = {});

// A file that is written as `path` + kPartial and renamed to `path` when it is complete. The
// constructor removes a partial file that a crash left, and throws ConfigError for any other of
// that name; the destructor removes one that was not committed.
class PartialFile {
public:
    explicit PartialFile(std::string path);
    PartialFile(const PartialFile&) = delete;
    PartialFile& operator=(const PartialFile&) = delete;
    ~PartialFile();

    const std::string& partial_path() const { return partial_path_; }

    // Syncs the file, renames it and syncs its folder. Call it after closing the file.
    void commit();

private:
    std::string path_;
    std::string partial_path_;
};

}  // namespace nearstep::checkpoint
