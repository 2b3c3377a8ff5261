// A file that is mapped to be read: it takes no memory but the page cache's.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace nearstep {

// Copies share the mapping.
class MappedFile {
public:
    // Throws ConfigError, "`what` `path` cannot be opened (reason): `advice`", if it cannot be
    // opened or mapped. A file that is cut short while it is mapped ends the program (SIGBUS).
    MappedFile(const std::string& path, const std::string& what, const std::string& advice);

    std::span<const std::byte> bytes() const {
        return {static_cast<const std::byte*>(mapping_.get()), size_};
    }
    // Keeps the bytes mapped.
    const std::shared_ptr<const void>& mapping() const { return mapping_; }

private:
    std::shared_ptr<const void> mapping_;
    std::size_t size_ = 0;
};

}  // namespace nearstep
