// Opens and removes files in folders where others may have put links, FIFOs or devices.
#pragma once

#include "base/descriptor.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace nearstep {

// A regular file, opened under its own name: the last part of the path is no link.
struct PlainFile {
    Descriptor file = {};
    // Why it is not open, as an errno and a phrase: ELOOP "it is a link", EISDIR, EINVAL "it is not
    // a regular file", or that of the call.
    int code = 0;
    std::string obstacle = {};
};

// Opens the file with `flags` of open(2) and never waits for the other end of a FIFO.
PlainFile open_plain(const std::string& path, int flags, mode_t mode = 0);

// Makes a new file to be written. A file that had the name before is removed first; a link is
// removed and not followed. On failure the descriptor is empty and errno is set.
Descriptor make_plain(const std::string& path, mode_t mode);

// Writes all bytes where the file is. Returns 0, or an errno.
int write_all(const Descriptor& file, std::span<const std::byte> bytes);
// Writes all bytes from `offset` on. Any thread may call. Returns 0, or an errno.
int write_all_at(const Descriptor& file, std::uint64_t offset, std::span<const std::byte> bytes);

// Appends the first bytes of a file that was just opened, at most `most`. Returns 0, or an errno.
int read_start(const Descriptor& file, std::size_t most, std::string& bytes);

// The file's first bytes, at most `most`; empty if there is no plain file that can be read.
std::string start_of_plain(const std::string& path, std::size_t most);

// True if this is a regular file under its only name, and its owner is the one that new files of
// this process get there. Only such files are removed because of what they hold.
bool is_own_plain(const std::string& path);

}  // namespace nearstep
