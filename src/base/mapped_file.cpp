#include "base/mapped_file.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace nearstep {

MappedFile::MappedFile(const std::string& path, const std::string& what,
                       const std::string& advice) {
    const auto refuse = [&](const char* verb) {
        throw ConfigError(
            text(what, " ", path, " cannot be ", verb, " (", std::strerror(errno), "): ", advice));
    };
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
        refuse("opened");
    }
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) {
        return;  // nothing to map
    }
    void* const memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) {
        refuse("mapped");
    }
    mapping_ = std::shared_ptr<const void>(memory, [bytes = size_](const void* mapped) {
        ::munmap(const_cast<void*>(mapped), bytes);
    });
}

}  // namespace nearstep
