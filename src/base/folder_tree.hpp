// Recursive operations on folders.
//
// They replace std::filesystem's recursive functions. PyTorch's library exports its own copy of
// those, and a program built with a newer C++ library crashes in them (g++ 13, PyTorch 2.11).
#pragma once

#include <filesystem>
#include <functional>

namespace nearstep {

// Visits everything below `folder`, each folder after its contents. Enters a folder if `enters`
// returns true. Does not follow links. Throws std::filesystem::filesystem_error.
void walk_tree(const std::filesystem::path& folder,
               const std::function<bool(const std::filesystem::path&)>& enters,
               const std::function<void(const std::filesystem::directory_entry&)>& visit);

}  // namespace nearstep
