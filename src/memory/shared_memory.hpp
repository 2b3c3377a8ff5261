// Memory that the processes of a node share.
#pragma once

#include "base/descriptor.hpp"
#include "memory/buffer.hpp"

#include <cstddef>
#include <string>

namespace nearstep::memory {

// Phrases for messages: what the memory is for, and how to do without it.
struct SharedUse {
    const char* what;    // "parameters"
    const char* remedy;  // "set placement.parameters = \"replicated\""
};

// Memory without a name in a file system. It is freed when its last process ends or is killed, and
// no limit of /dev/shm applies to it.
class SharedMemory {
public:
    // Zeros, all reserved at once. Throws ConfigError naming the size if there is too little
    // memory.
    static SharedMemory create(std::size_t bytes, const SharedUse& use);

    // Opens the memory at another process's path(). That process must have the same user and still
    // hold the memory. Throws ConfigError.
    static SharedMemory open(const std::string& path, std::size_t bytes, const SharedUse& use);

    // Path by which other processes of the node open it.
    std::string path() const;

    // Maps the memory; the Buffer may outlive this. Others see writes after a synchronisation.
    Buffer map() const;

private:
    SharedMemory(int descriptor, std::size_t bytes) : file_(descriptor), bytes_(bytes) {}

    Descriptor file_;
    std::size_t bytes_ = 0;
};

}  // namespace nearstep::memory
