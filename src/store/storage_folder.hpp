// Checks of a user's storage folders, made before any file in them is changed.
#pragma once

#include "base/wording.hpp"

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::store {

// Mode of new files of state: the group reads them, and nobody else does.
constexpr mode_t kStateMode = 0640;

// A file that will be made, or replaced, with `bytes` bytes.
struct PlannedFile {
    std::string path;
    std::size_t bytes = 0;
    std::size_t step_bytes = 0;  // that a step writes there, on average
    Term key = Term::path;       // what names its folder
};

// Returns the folder, or its closest existing parent.
std::string nearest_present(const std::string& folder);

// Makes the folder and its missing parents, whose names then survive a power cut. Returns 0, or an
// errno.
int make_folders(const std::string& folder);

// Throws PathError if there is a file in the folder's place, or if its files may not be looked at.
// Changes nothing.
void check_place(const std::string& folder, Term key = Term::path);

// The folders of the files, and parents of these, that are not there: each before those it lies in.
std::vector<std::string> missing_folders(const std::vector<std::string>& files);

// Removes those of the folders that are empty, in this order: what missing_folders() said before
// they were made.
void remove_empty_folders(const std::vector<std::string>& folders);

// Makes the folder as make_folders() does. Throws PathError if it cannot be made or written.
void make_writable_folder(const std::string& folder, Term key = Term::path);

// Bytes that a user's files may still take on the filesystem of the folder, which is there; nullopt
// if the filesystem does not tell.
std::optional<std::size_t> free_bytes_of(const std::string& folder);

// Checks that each filesystem has space for all of its files together, and that the folders can be
// written or made. Changes nothing. Throws PathError naming the folder, the reason or the bytes
// needed and free, and what to do.
void check_folders(const std::vector<PlannedFile>& files);

// Throws PathError if what has the folder's name is a link, or belongs to another user, or may be
// written by others.
void check_private_folder(const std::string& folder);

// Makes a folder for this user alone (mode 700), in a folder where all users may make files. Throws
// PathError if that fails, and as check_private_folder().
void make_private_folder(const std::string& folder);

// True if there is such a folder.
bool is_private_folder(const std::string& folder);

// Throws ConfigError if another process holds one of the files. Changes nothing.
void check_unused(const std::vector<std::string>& files);

// Properties of a folder for state files.
struct FolderFacts {
    bool is_there = false;  // if not, the facts are those of the closest existing parent
    std::string filesystem{};
    std::optional<std::size_t> free_bytes{};  // nullopt: the filesystem does not tell
    bool is_direct = false;                   // direct I/O of a page works and does not copy
    std::string obstacle{};  // why files cannot be written or I/O is not direct; empty: none
};

// Tests with an unlinked file, so nothing stays behind.
FolderFacts examine_folder(const std::string& folder);

// True if the file lives in the page cache alone (tmpfs, ramfs). Since Linux 6.6 such a filesystem
// accepts direct I/O but still copies, on the calling thread.
bool lies_in_memory(int file);
// True if files of this folder would live in the page cache alone. The folder need not exist yet.
bool lies_in_memory(const std::string& folder);

// The folder that contains a path; "." if the path names none.
std::string folder_of(const std::string& path);

// Throws PathError for a filesystem that is too small; `folder` is as written behind `key`.
[[noreturn]] void refuse_full_folder(const std::string& folder, std::size_t needed_bytes,
                                     std::size_t free_bytes, Term key = Term::path);

}  // namespace nearstep::store
