// Writes results to files, links, devices and pipes. Used by reports, metrics and exports.
#include "base/output_file.hpp"

#include "base/error.hpp"
#include "base/plain_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <span>
#include <system_error>

namespace nearstep {

namespace {

namespace fs = std::filesystem;

enum class OutputKind { regular, descriptor, other };

// The file that a path leads to. A file that does not exist yet counts as regular.
struct Target {
    OutputKind kind = OutputKind::regular;
    std::string path;
    int descriptor = -1;
};

[[noreturn]] void refuse(const std::string& path, int code) {
    throw_path_error(text("The file ", path, " cannot be written"), code,
                     "name a file in a folder that exists and is writable and has room.");
}

// The number in /proc/self/fd/N, to which /dev/stdout and /dev/fd/N lead; -1 for other paths.
// Opening such a name again would write from the start of a file that stdout was directed to.
int descriptor_of(const fs::path& folder, const std::string& name) {
    const std::string shown = folder.string();
    const std::string mine = text("/proc/", ::getpid(), "/");
    int number = -1;
    if (shown != mine + "fd" && !(shown.starts_with(mine + "task/") && shown.ends_with("/fd"))) {
        return -1;
    }
    const char* const end = name.data() + name.size();
    return std::from_chars(name.data(), end, number).ptr == end ? number : -1;
}

Target follow(const std::string& path) {
    constexpr int kMostLinks = 40;  // as Linux
    fs::path at = path;
    for (int link = 0; link < kMostLinks; ++link) {
        std::error_code error;
        const fs::path folder = fs::canonical(at.has_parent_path() ? at.parent_path() : ".", error);
        if (error) {
            refuse(path, error.value());
        }
        const std::string name = at.filename().string();
        if (const int number = descriptor_of(folder, name); number >= 0) {
            return {.kind = OutputKind::descriptor, .path = path, .descriptor = number};
        }
        struct stat status {};
        const std::string full = (folder / name).string();
        if (::lstat(full.c_str(), &status) != 0) {
            if (errno != ENOENT) {
                refuse(path, errno);
            }
            return {.path = full};
        }
        if (S_ISDIR(status.st_mode) || name.empty()) {
            refuse(path, EISDIR);
        }
        if (!S_ISLNK(status.st_mode)) {
            return {.kind = S_ISREG(status.st_mode) ? OutputKind::regular : OutputKind::other,
                    .path = full};
        }
        const fs::path to = fs::read_symlink(full, error);
        if (error) {
            refuse(path, error.value());
        }
        at = to.is_absolute() ? to : folder / to;
    }
    refuse(path, ELOOP);
}

// Ends the process neither if the reader of a pipe is gone: then write() fails with EPIPE.
class NoBrokenPipe {
public:
    NoBrokenPipe() {
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        sigset_t pending;
        sigpending(&pending);
        was_pending_ = sigismember(&pending, SIGPIPE) == 1;
        ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    NoBrokenPipe(const NoBrokenPipe&) = delete;
    NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;
    ~NoBrokenPipe() {
        const timespec now{};
        while (!was_pending_ && ::sigtimedwait(&pipe_, nullptr, &now) > 0) {
        }
        ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

private:
    sigset_t pipe_{};
    sigset_t before_{};
    bool was_pending_ = false;
};

// Returns 0 or an errno.
int write_text(const Descriptor& file, const std::string& words) {
    const NoBrokenPipe guard;
    return write_all(file, std::as_bytes(std::span(words)));
}

Descriptor open_through(const Target& target, int flags) {
    std::cout.flush();
    std::fflush(stdout);
    Descriptor file(target.kind == OutputKind::descriptor
                        ? ::fcntl(target.descriptor, F_DUPFD_CLOEXEC, 0)
                        : ::open(target.path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC | flags));
    if (!file) {
        refuse(target.path, errno);
    }
    return file;
}

// A new file beside `path` with a name that nobody can foresee. Empty, with errno set, if the
// folder takes none.
Descriptor make_beside(const std::string& path, std::string& name) {
    name = path + ".XXXXXX";
    Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
    if (file) {
        struct stat old {};
        const mode_t mask = ::umask(0);
        ::umask(mask);
        ::fchmod(file.get(),
                 ::stat(path.c_str(), &old) == 0 ? old.st_mode & 07777U : 0666U & ~mask);
    }
    return file;
}

// A file may be writable where its folder is not.
bool is_in_place(const std::string& path) { return ::access(path.c_str(), W_OK) == 0; }

void write_through(const Target& target, int flags, const std::string& words) {
    const Descriptor file = open_through(target, flags);
    if (const int code = write_text(file, words); code != 0) {
        refuse(target.path, code);
    }
}

void replace_file(const std::string& path, const std::string& words) {
    std::string name;
    Descriptor file = make_beside(path, name);
    if (!file) {
        const int code = errno;
        if (!is_in_place(path)) {
            refuse(path, code);
        }
        write_through({.path = path}, O_TRUNC, words);
        return;
    }
    int code = write_text(file, words);
    file = Descriptor();
    if (code == 0 && std::rename(name.c_str(), path.c_str()) != 0) {
        code = errno;
    }
    if (code != 0) {
        ::unlink(name.c_str());
        if (code == EBUSY && is_in_place(path)) {  // a file that is mounted
            write_through({.path = path}, O_TRUNC, words);
            return;
        }
        refuse(path, code);
    }
}

// Whether the file has the input's name, or is there and is the input or lies in that folder.
bool is_of(const fs::path& file, const NamedPath& input) {
    if (input.has_name != nullptr) {
        return input.has_name(file.filename().string());
    }
    const fs::path place = input.path;
    std::error_code ignored;
    if (place.empty() || !fs::exists(file, ignored)) {
        return false;
    }
    if (!fs::is_directory(place, ignored)) {
        return fs::equivalent(file, place, ignored);
    }
    const fs::path folder = fs::canonical(place, ignored);
    const auto [end, unused] = std::ranges::mismatch(folder, file);
    return !folder.empty() && end == folder.end();
}

}  // namespace

void check_writable(const std::string& path) {
    if (path.empty()) {
        return;
    }
    const Target target = follow(path);
    if (target.kind == OutputKind::descriptor) {
        if (::fcntl(target.descriptor, F_GETFD) < 0) {
            refuse(path, errno);
        }
        return;
    }
    if (target.kind == OutputKind::other) {  // opening a pipe would wait for its reader
        if (::access(target.path.c_str(), W_OK) != 0) {
            refuse(path, errno);
        }
        return;
    }
    std::string name;
    if (make_beside(target.path, name)) {
        ::unlink(name.c_str());
    } else if (const int code = errno; !is_in_place(target.path)) {
        refuse(path, code);
    }
}

void check_apart(const std::vector<NamedPath>& results, const std::vector<NamedPath>& inputs) {
    std::vector<NamedPath> files;
    for (const NamedPath& result : results) {
        if (result.path.empty()) {
            continue;
        }
        const Target target = follow(result.path);
        if (target.kind != OutputKind::regular) {
            continue;
        }
        for (const NamedPath& other : files) {
            if (other.path == target.path) {
                throw ConfigError(text(result.option, " and ", other.option, " both name ",
                                       result.path, ": name a file for each."));
            }
        }
        for (const NamedPath& input : inputs) {
            if (is_of(target.path, input)) {
                throw ConfigError(text(result.option, " names ", result.path, ", which belongs to ",
                                       input.option, " and would be lost: name another file."));
            }
        }
        files.push_back({result.option, target.path});
    }
}

void write_whole_file(const std::string& path, const std::string& text_to_write) {
    if (path.empty()) {
        return;
    }
    const Target target = follow(path);
    if (target.kind == OutputKind::regular) {
        replace_file(target.path, text_to_write);
    } else {
        write_through(target, 0, text_to_write);
    }
}

std::string regular_output(const std::string& path, const char* what) {
    const Target target = follow(path);
    if (target.kind != OutputKind::regular) {
        throw ConfigError(text(what, " cannot be written to ", path,
                               ", which is no regular file: name a new file."));
    }
    return target.path;
}

LineOutput::LineOutput(const std::string& path) : path_(path) {
    check_writable(path);
    const Target target = follow(path);
    is_regular_ = target.kind == OutputKind::regular;
    path_ = target.path;
    if (!is_regular_) {
        file_ = open_through(target, 0);
    } else if (!is_in_place(path_) && errno != ENOENT) {  // lines are added to it
        refuse(path, errno);
    }
}

void LineOutput::begin(const std::string& lines) {
    if (is_regular_) {
        replace_file(path_, lines);
        file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
        if (!file_) {
            refuse(path_, errno);
        }
    } else if (const int code = add(lines); code != 0) {
        refuse(path_, code);
    }
}

int LineOutput::add(const std::string& line) {
    struct stat before {};
    const bool can_undo = is_regular_ && ::fstat(file_.get(), &before) == 0;
    const int code = write_text(file_, line);
    if (code != 0 && can_undo && ::ftruncate(file_.get(), before.st_size) != 0) {
        return code;  // the reason that counts
    }
    return code;
}

}  // namespace nearstep
