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

// Visits everything below `folder`, each folder after its contents. Enters a folder if `enters`
// returns true. Does not follow links. Throws std::filesystem::filesystem_error.
void walk_tree(const std::filesystem::path& folder,
               const std::function<bool(const std::filesystem::path&)>& enters,
               const std::function<void(const std::filesystem::directory_entry&)>& visit);

}  // namespace nearstep
