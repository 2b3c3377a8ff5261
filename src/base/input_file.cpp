// Reads parts of a large file. Used for texts, tokens and pretrained weights.
#include "base/input_file.hpp"

#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/plain_file.hpp"
#include "base/units.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace nearstep {

namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& path, const char* verb,
                         int code, const std::string& advice) {
    throw_path_error(text(what, " ", path, " cannot be ", verb), code, advice,
                     is_broken_link(path) ? "it is a link that leads nowhere" : "");
}

// Appends what a pipe has, without its end. Returns ETIMEDOUT if nobody begins to write to it
// within some seconds, else 0 or an errno.
int read_begin_of_pipe(const Descriptor& pipe, std::string& bytes) {
    constexpr int kPatienceMs = 5000;
    pollfd one{.fd = pipe.get(), .events = POLLIN, .revents = 0};
    char first = 0;
    ssize_t count = ::read(pipe.get(), &first, 1);
    if (count == 0) {  // has no writer yet
        if (::poll(&one, 1, kPatienceMs) == 0) {
            return ETIMEDOUT;
        }
        count = ::read(pipe.get(), &first, 1);
    }
    while (count < 0 && (errno == EAGAIN || errno == EINTR)) {
        ::poll(&one, 1, -1);
        count = ::read(pipe.get(), &first, 1);
    }
    if (count > 0) {
        bytes.push_back(first);
    }
    return count < 0 ? errno : 0;
}

}  // namespace

InputFile::InputFile(const std::string& path, std::string what, const std::string& advice)
    : path_(path), what_(std::move(what)) {
    // Without O_NONBLOCK a pipe would wait for its writer.
    file_ =
        std::make_shared<const Descriptor>(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (!*file_ || ::fstat(file_->get(), &status) != 0) {
        refuse(what_, path, "opened", errno, advice);
    }
    if (!S_ISREG(status.st_mode)) {
        throw ConfigError(text(what_, " ", path, " is no regular file: ", advice));
    }
    size_ = static_cast<std::size_t>(status.st_size);
}

void InputFile::read(std::size_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
        const ssize_t count =
            ::pread(file_->get(), to.data(), to.size(), static_cast<off_t>(offset));
        if (count == 0) {
            throw IoError(text(what_, " ", path_, " ends before offset ", offset + to.size(),
                               " but had ", size_, " bytes when it was opened: something else has ",
                               "made it shorter. Restore it, then start again."));
        }
        if (count < 0 && errno != EINTR && errno != EAGAIN) {
            throw IoError(text(what_, " ", path_, " cannot be read at offset ", offset, " (",
                               std::generic_category().message(errno),
                               "): check the drive or the server that it is on."));
        }
        if (count > 0) {
            to = to.subspan(static_cast<std::size_t>(count));
            offset += static_cast<std::size_t>(count);
        }
    }
}

std::string InputFile::read_all() const {
    std::string all(size_, '\0');
    read(0, std::as_writable_bytes(std::span(all)));
    return all;
}

void InputFile::expect_random_reads() const {
    ::posix_fadvise(file_->get(), 0, 0, POSIX_FADV_RANDOM);
}

std::string read_short_file(const std::string& path, const std::string& what,
                            const std::string& advice) {
    constexpr std::size_t kMost = 64 * MiB;
    struct stat status {};
    // Without O_NONBLOCK a pipe would wait for its writer.
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    std::string bytes;
    int code = !file || ::fstat(file.get(), &status) != 0 ? errno : 0;
    if (code == 0 && S_ISFIFO(status.st_mode)) {
        code = read_begin_of_pipe(file, bytes);
        if (code == ETIMEDOUT) {
            throw ConfigError(text(what, " ", path, " is a pipe that nobody writes to: ", advice));
        }
    }
    if (file) {
        ::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
    }
    if (code == 0) {
        code = S_ISDIR(status.st_mode) ? EISDIR : read_start(file, kMost, bytes);
    }
    if (code != 0) {
        refuse(what, path, "read", code, advice);
    }
    if (bytes.size() == kMost) {
        throw ConfigError(text(what, " ", path, " is longer than ",
                               human_bytes(static_cast<double>(kMost)), ": ", advice));
    }
    return bytes;
}

}  // namespace nearstep
