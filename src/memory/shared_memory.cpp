// Makes memory that the processes of a node share. Used by engine/route/parameter_vector.cpp.
#include "memory/shared_memory.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/units.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nearstep::memory {

namespace {

[[noreturn]] void refuse(std::size_t bytes, const SharedUse& use, int error) {
    throw ConfigError(text("The ranks of this node cannot share ",
                           human_bytes(static_cast<double>(bytes)), " of memory for ", use.what,
                           " (", std::strerror(error), "): free some, or ", use.remedy, "."));
}

}  // namespace

SharedMemory SharedMemory::create(std::size_t bytes, const SharedUse& use) {
    // Check before reserving: a machine that runs out of memory kills other processes.
    if (const std::size_t available = machine_memory().available_bytes;
        available != 0 && bytes > available) {
        refuse(bytes, use, ENOMEM);
    }
    SharedMemory memory(::memfd_create("nearstep-shared", MFD_CLOEXEC), bytes);
    if (!memory.file_) {
        refuse(bytes, use, errno);
    }
    // Reserve now, so that too little memory is an error here and not a signal later.
    if (const int error = ::posix_fallocate(memory.file_.get(), 0, static_cast<off_t>(bytes));
        error != 0) {
        refuse(bytes, use, error);
    }
    return memory;
}

SharedMemory SharedMemory::open(const std::string& path, std::size_t bytes, const SharedUse& use) {
    SharedMemory memory(::open(path.c_str(), O_RDWR | O_CLOEXEC), bytes);
    if (!memory.file_) {
        refuse(bytes, use, errno);
    }
    return memory;
}

std::string SharedMemory::path() const { return text("/proc/", ::getpid(), "/fd/", file_.get()); }

Buffer SharedMemory::map() const { return Buffer::of_file(file_.get(), bytes_); }

}  // namespace nearstep::memory
