// The checks that a user's storage folders pass before any file in them is touched.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace nearstep::store {

// The mode of new files of state.
constexpr mode_t kOwnerAndGroup = 0660;

// A file that is going to be made, or replaced, with `bytes` bytes.
struct PlannedFile {
    std::string path;
    std::size_t bytes = 0;
};

// Checks that the filesystems of the files' folders have space for all of the files together, then
// makes the folders and checks that they can be written. Throws ConfigError naming the folder, the
// reason or the bytes needed and free, and what to do.
void check_folders(const std::vector<PlannedFile>& files);

// Throws ConfigError if another process holds one of the files. Changes and makes nothing.
void check_unused(const std::vector<std::string>& files);

// What a folder for state files offers.
struct FolderFacts {
    bool is_there = false;  // if not, the facts are those of the closest folder above it that is
    std::string filesystem{};
    std::size_t free_bytes = 0;
    bool is_direct = false;  // direct I/O of a page works, and is no copy
    std::string obstacle{};  // why no file can be written or I/O is not direct; empty: nothing
};

// Writes one page to a file that has no name any more: nothing stays behind.
FolderFacts examine_folder(const std::string& folder);

// True if the file is the page cache's alone (tmpfs, ramfs): such a filesystem takes direct I/O
// since Linux 6.6, but copies all the same, on the thread that asks.
bool lies_in_memory(int file);

// The folder a path lies in, "." if it names none.
std::string folder_of(const std::string& path);

// The sentence for a filesystem that is too small; `folder` as in csd.path.
std::string describe_full_folder(const std::string& folder, std::size_t needed_bytes,
                                 std::size_t free_bytes);

}  // namespace nearstep::store
