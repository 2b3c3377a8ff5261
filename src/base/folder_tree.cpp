#include "base/folder_tree.hpp"

namespace nearstep {

namespace fs = std::filesystem;

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
