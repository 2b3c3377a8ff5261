// A file that is mapped for reading. It uses only page cache memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace nearstep {

// Copies share the mapping.
class MappedFile {
public:
    // Throws ConfigError "`what` `path` cannot be opened (reason): `advice`" if opening or mapping
    // fails. Truncating the file while it is mapped kills the program (SIGBUS).
    MappedFile(const std::string& path, const std::string& what, const std::string& advice);

    std::span<const std::byte> bytes() const {
        return {static_cast<const std::byte*>(mapping_.get()), size_};
    }
    // A copy of this pointer keeps the bytes mapped.
    const std::shared_ptr<const void>& mapping() const { return mapping_; }

private:
    std::shared_ptr<const void> mapping_;
    std::size_t size_ = 0;
};

}  // namespace nearstep
