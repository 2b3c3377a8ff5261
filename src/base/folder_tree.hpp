// Folders with all that is below them.
//
// In place of std::filesystem's recursive functions: PyTorch's library exports its own copy of
// those, and a program compiled with a newer C++ library than that crashes in them (g++ 13,
// PyTorch 2.11).
#pragma once

#include <filesystem>
#include <functional>

namespace nearstep {

// Visits what is below `folder`, a folder after what it holds; links are not followed. Folders are
// entered if `enters` says so. Throws std::filesystem::filesystem_error.
void walk_tree(const std::filesystem::path& folder,
               const std::function<bool(const std::filesystem::path&)>& enters,
               const std::function<void(const std::filesystem::directory_entry&)>& visit);

// Removes `path`, whatever it is; nothing if there is none. Throws as above.
void remove_tree(const std::filesystem::path& path);

}  // namespace nearstep
