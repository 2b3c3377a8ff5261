// Memory that the processes of a node share.
#pragma once

#include "base/descriptor.hpp"
#include "memory/buffer.hpp"

#include <cstddef>
#include <string>

namespace nearstep::memory {

// Without a name in a file system: it goes with the last process that has it, also with one that is
// killed, and no limit of /dev/shm applies to it.
class SharedMemory {
public:
    // Zeros, all of them reserved. Throws ConfigError naming the size if they cannot be had.
    static SharedMemory create(std::size_t bytes);

    // Opens what path() of another process of this user leads to, which must still have it. Throws
    // ConfigError.
    static SharedMemory open(const std::string& path, std::size_t bytes);

    // Where other processes of the node find it.
    std::string path() const;

    // The memory itself, which outlives this. Writes are seen by the others once both have met.
    Buffer map() const;

private:
    SharedMemory(int descriptor, std::size_t bytes) : file_(descriptor), bytes_(bytes) {}

    Descriptor file_;
    std::size_t bytes_ = 0;
};

}  // namespace nearstep::memory
