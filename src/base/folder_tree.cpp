// Looks for files and walks through folders. Used by store, checkpoint, data and the engine's
// restart.
#include "base/folder_tree.hpp"

#include "base/error.hpp"

#include <sys/stat.h>

#include <cerrno>

namespace nearstep {

namespace fs = std::filesystem;

bool is_present(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) {
        return true;
    }
    if (!is_mistake_in_path(errno)) {
        throw_path_error(text("It is not known whether ", path, " is there"), errno, "");
    }
    return false;
}

void walk_tree(const fs::path& folder, const std::function<bool(const fs::path&)>& enters,
               const std::function<void(const fs::directory_entry&)>& visit) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (!entry.is_symlink() && entry.is_directory() && enters(entry.path())) {
            walk_tree(entry.path(), enters, visit);
        }
        visit(entry);
    }
}

}  // namespace nearstep
