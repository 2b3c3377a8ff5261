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

[[noreturn]] void refuse(std::size_t bytes, int error) {
    throw ConfigError(text("The ranks of this node cannot share ",
                           human_bytes(static_cast<double>(bytes)), " of memory for parameters (",
                           std::strerror(error),
                           R"(): free some, or set placement.parameters = "replicated".)"));
}

}  // namespace

SharedMemory SharedMemory::create(std::size_t bytes) {
    // Check before reserving: a machine that runs out of memory kills other processes.
    if (const std::size_t available = machine_memory().available_bytes;
        available != 0 && bytes > available) {
        refuse(bytes, ENOMEM);
    }
    SharedMemory memory(::memfd_create("nearstep-parameters", MFD_CLOEXEC), bytes);
    if (!memory.file_) {
        refuse(bytes, errno);
    }
    // Reserve now, so that too little memory is an error here and not a signal later.
    if (const int error = ::posix_fallocate(memory.file_.get(), 0, static_cast<off_t>(bytes));
        error != 0) {
        refuse(bytes, error);
    }
    return memory;
}

SharedMemory SharedMemory::open(const std::string& path, std::size_t bytes) {
    SharedMemory memory(::open(path.c_str(), O_RDWR | O_CLOEXEC), bytes);
    if (!memory.file_) {
        refuse(bytes, errno);
    }
    return memory;
}

std::string SharedMemory::path() const { return text("/proc/", ::getpid(), "/fd/", file_.get()); }

Buffer SharedMemory::map() const { return Buffer::of_file(file_.get(), bytes_); }

}  // namespace nearstep::memory
