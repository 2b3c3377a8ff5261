// Opens regular files without following links. Used by the store and by restarts.
#include "base/plain_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace nearstep {

namespace {

PlainFile obstacle_of_call(int code) {
    return {.code = code, .obstacle = code == ELOOP ? "it is a link" : std::strerror(code)};
}

// Says what a path names that is not a regular file.
PlainFile obstacle_of(mode_t kind) {
    if (S_ISLNK(kind) || S_ISDIR(kind)) {
        return obstacle_of_call(S_ISLNK(kind) ? ELOOP : EISDIR);
    }
    return {.code = EINVAL, .obstacle = "it is not a regular file"};
}

// Network drives and containers may map users, so the owner of a new file can be another one.
bool owns_new_files_as(uid_t owner, const std::string& path) {
    if (owner == ::geteuid()) {
        return true;
    }
    std::string name = (std::filesystem::path(path).parent_path() / "nearstep-own-XXXXXX").string();
    const Descriptor probe(::mkostemp(name.data(), O_CLOEXEC));
    struct stat facts {};
    const bool is_known = probe && ::fstat(probe.get(), &facts) == 0;
    if (probe) {
        ::unlink(name.c_str());
    }
    return is_known && facts.st_uid == owner;
}

}  // namespace

PlainFile open_plain(const std::string& path, int flags, mode_t mode) {
    struct stat facts {};
    // Opening some devices has an effect, so look first.
    if (::lstat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode)) {
        return obstacle_of(facts.st_mode);
    }
    Descriptor file(
        ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode));
    if (!file || ::fstat(file.get(), &facts) != 0) {
        return obstacle_of_call(errno);
    }
    if (!S_ISREG(facts.st_mode)) {
        return obstacle_of(facts.st_mode);
    }
    return {.file = std::move(file)};
}

Descriptor make_plain(const std::string& path, mode_t mode) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        return {};
    }
    return Descriptor(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
}

int write_all(const Descriptor& file, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
        if (count > 0) {
            bytes = bytes.subspan(static_cast<std::size_t>(count));
        } else if (count < 0 && errno == EAGAIN) {  // a pipe that is full
            ::usleep(1000);
        } else if (count < 0 && errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

int write_all_at(const Descriptor& file, std::uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t count =
            ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (count < 0 && errno != EINTR) {
            return errno;
        }
        if (count > 0) {
            bytes = bytes.subspan(static_cast<std::size_t>(count));
            offset += static_cast<std::uint64_t>(count);
        }
    }
    return 0;
}

int read_start(const Descriptor& file, std::size_t most, std::string& bytes) {
    std::array<char, 4096> part{};
    while (bytes.size() < most) {
        const ssize_t count =
            ::read(file.get(), part.data(), std::min(part.size(), most - bytes.size()));
        if (count == 0) {
            return 0;
        }
        if (count < 0 && errno != EINTR) {
            return errno;
        }
        bytes.append(part.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
    }
    return 0;
}

std::string start_of_plain(const std::string& path, std::size_t most) {
    const PlainFile opened = open_plain(path, O_RDONLY);
    std::string bytes;
    if (opened.file) {
        read_start(opened.file, most, bytes);
    }
    return bytes;
}

bool is_own_plain(const std::string& path) {
    struct stat facts {};
    return ::lstat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_nlink == 1 &&
           owns_new_files_as(facts.st_uid, path);
}

}  // namespace nearstep
