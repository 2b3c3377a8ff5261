#include "link/shared_times.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

namespace nearstep::link {

namespace {

constexpr std::size_t kBytes = 4096;

[[noreturn]] void refuse(const std::string& name) {
    throw ConfigError(text("The ranks of this node cannot share memory for their shaped links (",
                           name, ": ", std::strerror(errno),
                           "): let them see one /dev/shm, or set the keys of [link] to 0."));
}

}  // namespace

std::string SharedTimes::unused_name() {
    std::random_device random;
    return text("/nearstep-links-", ::getpid(), "-", random(), "-", random());
}

SharedTimes SharedTimes::map(const std::string& name, int flags) {
    const Descriptor file(::shm_open(name.c_str(), O_RDWR | flags, S_IRUSR | S_IWUSR));
    if (!file || ((flags & O_CREAT) != 0 && ::ftruncate(file.get(), kBytes) != 0)) {
        refuse(name);
    }
    void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) {
        refuse(name);
    }
    return SharedTimes(memory);
}

void SharedTimes::unmap(void* memory) noexcept { ::munmap(memory, kBytes); }

SharedTimes SharedTimes::create(const std::string& name) { return map(name, O_CREAT | O_EXCL); }

SharedTimes SharedTimes::open(const std::string& name) { return map(name, 0); }

void SharedTimes::remove(const std::string& name) { ::shm_unlink(name.c_str()); }

std::atomic<Time>& SharedTimes::operator[](std::size_t index) const {
    expects(index < kBytes / sizeof(std::atomic<Time>), "the shared memory has that many times");
    // The zeroed memory holds atomics of value 0.
    return static_cast<std::atomic<Time>*>(memory_.get())[index];
}

}  // namespace nearstep::link
