// A large file that is read in parts while it is used.
#pragma once

#include "base/descriptor.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace nearstep {

// Copies share the open file. Any thread may read. The file is not mapped: a mapped file that
// somebody cuts short kills the program by SIGBUS, and a read of one is an error with a sentence.
class InputFile {
public:
    // Throws "`what` `path` cannot be opened (reason): `advice`" if it is no regular file or cannot
    // be opened: PathError, or IoError if the drive fails.
    InputFile(const std::string& path, std::string what, const std::string& advice);

    const std::string& path() const { return path_; }
    std::size_t size() const { return size_; }  // when it was opened

    // Fills `to` from `offset` on. Throws IoError if the file ends before, or cannot be read.
    void read(std::size_t offset, std::span<std::byte> to) const;
    std::string read_all() const;

    // Parts will be read in any order, so the kernel need not read ahead.
    void expect_random_reads() const;

private:
    std::string path_;
    std::string what_;
    std::shared_ptr<const Descriptor> file_;
    std::size_t size_ = 0;
};

// The whole of a file, or of a pipe, that a user writes by hand or a short run makes. Throws
// "`what` `path` cannot be read (reason): `advice`", or says that it is too long to be one.
std::string read_short_file(const std::string& path, const std::string& what,
                            const std::string& advice);

}  // namespace nearstep
