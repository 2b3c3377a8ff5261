// Checks and makes the folders for state. Used when a run starts, by restarts, and by doctor.
#include "store/storage_folder.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "store/file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

namespace nearstep::store {

namespace {

struct Filesystem {
    std::string folder;
    Term key = Term::path;
    std::size_t needed_bytes = 0;
    std::optional<std::size_t> free_bytes = {};
};

[[noreturn]] void refuse(Term key, const std::string& folder, const std::string& what, int code) {
    throw_path_error(text(key, " \"", folder, "\" cannot be ", what), code,
                     "choose a folder that you may write to, or change its permissions.");
}

// A file without a name in the folder; none, with errno, if no file can be made there.
Descriptor make_nameless_file(const std::string& folder) {
    std::string name = folder + "/nearstep-try-XXXXXX";
    Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
    if (file) {
        ::unlink(name.c_str());
    }
    return file;
}

// Tries it, since root may write anywhere by permissions, and nowhere in /proc. A full filesystem
// has a sentence of its own.
void check_writable_folder(const std::string& folder, Term key) {
    if (!make_nameless_file(nearest_present(folder)) && errno != ENOSPC && errno != EDQUOT) {
        refuse(key, folder, is_present(folder) ? "written" : "made", errno);
    }
}

std::string filesystem_of(const std::string& folder) {
    constexpr std::array<std::pair<std::uint32_t, const char*>, 9> kNames{
        {{0xEF53, "ext4"},
         {0x58465342, "xfs"},
         {0x9123683E, "btrfs"},
         {TMPFS_MAGIC, "tmpfs"},
         {0x794C7630, "overlay"},
         {0x2FC12FC1, "zfs"},
         {0x6969, "nfs"},
         {0x0BD00BD0, "lustre"},
         {0x47504653, "gpfs"}}};  // from linux/magic.h and the filesystems' headers
    struct statfs facts {};
    if (::statfs(folder.c_str(), &facts) != 0) {
        return "unknown";
    }
    const auto type = static_cast<std::uint32_t>(facts.f_type);
    const auto* const found =
        std::ranges::find(kNames, type, [](const auto& name) { return name.first; });
    return found == kNames.end() ? text("of type ", type) : found->second;
}

bool is_memory(const struct statfs& facts) {
    return facts.f_type == TMPFS_MAGIC || facts.f_type == RAMFS_MAGIC;
}

}  // namespace

std::optional<std::size_t> free_bytes_of(const std::string& folder) {
    struct statvfs facts {};
    // Some filesystems of FUSE and of networks fail here, or have no size.
    if (::statvfs(folder.c_str(), &facts) != 0 || facts.f_blocks == 0 || facts.f_frsize == 0) {
        return std::nullopt;
    }
    return static_cast<std::size_t>(facts.f_bavail) * facts.f_frsize;
}

std::string nearest_present(const std::string& folder) {
    std::filesystem::path path = std::filesystem::absolute(folder);
    while (!is_present(path.string()) && path.has_relative_path()) {
        path = path.parent_path();
    }
    return path.string();
}

std::vector<std::string> missing_folders(const std::vector<std::string>& files) {
    std::vector<std::string> missing;
    for (const std::string& file : files) {
        const std::string folder = folder_of(file);
        const std::filesystem::path present = nearest_present(folder);
        for (auto at = std::filesystem::absolute(folder); at != present && at.has_relative_path();
             at = at.parent_path()) {
            missing.push_back(at.string());
        }
    }
    std::ranges::sort(missing, std::greater(), &std::string::size);
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    return missing;
}

void remove_empty_folders(const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) {
        ::rmdir(folder.c_str());  // fails unless it is empty
    }
}

int make_folders(const std::string& folder) {
    const std::vector<std::string> missing = missing_folders({folder + "/."});
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    int code = failure.value();
    for (auto made = missing.begin(); code == 0 && made != missing.end(); ++made) {
        code = flush_folder(folder_of(*made));
    }
    return code;
}

void make_writable_folder(const std::string& folder, Term key) {
    if (const int code = make_folders(folder); code != 0) {
        refuse(key, folder, "made", code);
    }
    check_writable_folder(folder, key);
}

void check_place(const std::string& folder, Term key) {
    if (const std::string link = broken_link_in(folder); !link.empty()) {
        refuse(key, folder, text("made, since ", link, " is a link that leads nowhere"), ENOENT);
    }
    std::error_code failure;
    if (!std::filesystem::exists(folder + "/.", failure) && failure) {
        refuse(key, folder, "opened", failure.value());
    }
    const std::string present = nearest_present(folder);
    if (!std::filesystem::is_directory(present, failure)) {
        refuse(key, folder, text("made, since ", present, " is a file"), ENOTDIR);
    }
}

bool is_private_folder(const std::string& folder) {
    struct stat facts {};
    return ::lstat(folder.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) &&
           facts.st_uid == ::geteuid() && (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

void check_private_folder(const std::string& folder) {
    struct stat facts {};
    if (::lstat(folder.c_str(), &facts) == 0 && !is_private_folder(folder)) {
        throw PathError(
            text("The folder \"", folder,
                 "\" for state in memory (csd.tiers.memory) is a link, belongs to another "
                 "user or may be written by others, who could change the state: remove "
                 "it, set csd.tiers.memory to 0, or choose another folder for ",
                 Term::path, "."),
            EEXIST);
    }
}

void make_private_folder(const std::string& folder) {
    if (::mkdir(folder.c_str(), S_IRWXU) == 0) {
        return;
    }
    if (errno != EEXIST) {
        refuse(Term::path, folder, "made", errno);
    }
    check_private_folder(folder);
    const Descriptor opened(
        ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!opened || ::fchmod(opened.get(), S_IRWXU) != 0) {
        refuse(Term::path, folder, "kept from others", errno);
    }
}

void check_folders(const std::vector<PlannedFile>& files) {
    std::map<dev_t, Filesystem> filesystems;
    std::set<std::string> checked;
    for (const PlannedFile& file : files) {
        const std::string folder = folder_of(file.path);
        if (checked.insert(folder).second) {
            check_place(folder, file.key);
            check_writable_folder(folder, file.key);
        }
        const std::string present = nearest_present(folder);
        struct stat facts {};
        if (::stat(present.c_str(), &facts) != 0) {
            refuse(file.key, folder, "used", errno);
        }
        Filesystem& filesystem = filesystems[facts.st_dev];
        if (filesystem.folder.empty()) {
            filesystem = {folder, file.key, 0, free_bytes_of(present)};
        }
        filesystem.needed_bytes += file.bytes;
        // Replacing a file frees its space first.
        if (filesystem.free_bytes && ::stat(file.path.c_str(), &facts) == 0) {
            *filesystem.free_bytes += static_cast<std::size_t>(facts.st_blocks) * 512;
        }
    }
    for (const auto& [id, filesystem] : filesystems) {
        if (!filesystem.free_bytes) {
            static std::once_flag once;
            std::call_once(once, [&one = filesystem] {
                log_event("free_space_unknown",
                          {{"folder", one.folder},
                           {"needed", human_bytes(static_cast<double>(one.needed_bytes))}});
            });
        } else if (filesystem.needed_bytes > *filesystem.free_bytes) {
            refuse_full_folder(filesystem.folder, filesystem.needed_bytes, *filesystem.free_bytes,
                               filesystem.key);
        }
    }
}

FolderFacts examine_folder(const std::string& folder) {
    const std::string present = nearest_present(folder);
    std::error_code ignored;
    FolderFacts facts{.is_there = std::filesystem::is_directory(folder, ignored),
                      .filesystem = filesystem_of(present),
                      .free_bytes = free_bytes_of(present)};
    const Descriptor file = make_nameless_file(present);
    if (!file) {
        facts.obstacle = text("no file can be made (", std::strerror(errno), ")");
        return facts;
    }
    if (lies_in_memory(file.get())) {
        facts.obstacle = "it lies in memory, where the state is updated in place";
        return facts;
    }
    alignas(kPageBytes) const std::array<std::byte, kPageBytes> page{};
    facts.is_direct =
        ::fcntl(file.get(), F_SETFL, O_DIRECT) == 0 &&
        ::pwrite(file.get(), page.data(), page.size(), 0) == static_cast<ssize_t>(page.size());
    if (!facts.is_direct) {
        facts.obstacle = text("direct I/O is refused (", std::strerror(errno), ")");
    }
    return facts;
}

void check_unused(const std::vector<std::string>& files) {
    for (const std::string& file : files) {
        if (is_present(file)) {
            const File lock(file);
        }
    }
}

bool lies_in_memory(int file) {
    struct statfs facts {};
    return ::fstatfs(file, &facts) == 0 && is_memory(facts);
}

bool lies_in_memory(const std::string& folder) {
    struct statfs facts {};
    return ::statfs(nearest_present(folder).c_str(), &facts) == 0 && is_memory(facts);
}

std::string folder_of(const std::string& path) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    return folder.empty() ? "." : folder;
}

void refuse_full_folder(const std::string& folder, std::size_t needed_bytes, std::size_t free_bytes,
                        Term key) {
    throw PathError(
        text(key, " \"", folder, "\" has ", human_bytes(static_cast<double>(free_bytes)),
             " free, but ", human_bytes(static_cast<double>(needed_bytes)), " are needed for the ",
             key == Term::log ? "logs" : "optimizer state",
             ": free some space, choose another folder or add devices on other drives."),
        ENOSPC);
}

}  // namespace nearstep::store
