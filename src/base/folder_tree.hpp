// Looks at files and folders.
//
// walk_tree replaces std::filesystem's recursive functions. PyTorch's library exports its own copy
// of those, and a program built with a newer C++ library crashes in them (g++ 13, PyTorch 2.11).
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace nearstep {

// False if there is no such file, or if it may not be looked at. Throws IoError if the drive or its
// server does not answer, so that a failure is not taken for an absence.
bool is_present(const std::string& path);

// True for a link whose target is missing, or that leads to itself.
bool is_broken_link(const std::string& path);
// Returns such a link among the path and the folders that it lies in; empty if there is none.
std::string broken_link_in(const std::string& path);

// Makes the names in the folder survive a power cut. Where the filesystem cannot do that, a line of
// the log says so once, and the call succeeds. Returns 0, or an errno.
int flush_folder(const std::string& folder);

// Visits everything below `folder`, each folder after its contents. Enters a folder if `enters`
// returns true. Does not follow links. Throws std::filesystem::filesystem_error.
void walk_tree(const std::filesystem::path& folder,
               const std::function<bool(const std::filesystem::path&)>& enters,
               const std::function<void(const std::filesystem::directory_entry&)>& visit);

}  // namespace nearstep
