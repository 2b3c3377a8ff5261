// Looks for files and walks through folders. Used by store, checkpoint, data and the engine's
// restart.
#include "base/folder_tree.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <system_error>

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

bool is_broken_link(const std::string& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode) &&
           ::stat(path.c_str(), &status) != 0 && (errno == ENOENT || errno == ELOOP);
}

std::string broken_link_in(const std::string& path) {
    for (fs::path at = fs::absolute(path); !is_present(at.string()) && at.has_relative_path();
         at = at.parent_path()) {
        if (is_broken_link(at.string())) {
            return at.string();
        }
    }
    return "";
}

int flush_folder(const std::string& folder) {
    const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!opened) {
        return errno;
    }
    if (::fsync(opened.get()) == 0) {
        return 0;
    }
    // Errors by which CIFS, shared folders of virtual machines, and FUSE say that they do not offer
    // an operation.
    constexpr std::array kNotOffered = {EINVAL, ENOSYS, EOPNOTSUPP, EBADF, ENOTTY, EISDIR};
    const int code = errno;
    if (std::ranges::find(kNotOffered, code) == kNotOffered.end()) {
        return code;
    }
    static std::once_flag once;
    std::call_once(once, [&] {
        log_event("folder_not_flushed",
                  {{"folder", folder},
                   {"reason", std::generic_category().message(code)},
                   {"meaning", "new files, and the last step, may not survive a power cut"}});
    });
    return 0;
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
