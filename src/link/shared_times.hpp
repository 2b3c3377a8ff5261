// Link times in memory that the processes of a node share.
#pragma once

#include "base/handle.hpp"
#include "link/clock.hpp"

#include <atomic>
#include <cstddef>
#include <string>

namespace nearstep::link {

// The memory has a name from create() to remove(). It is freed when its last process ends or is
// killed. It holds no locks, so a killed process does not block the others.
class SharedTimes {
public:
    static std::string unused_name();

    // Throw ConfigError if the system refuses the shared memory. New times are 0.
    static SharedTimes create(const std::string& name);
    static SharedTimes open(const std::string& name);

    // Removes the name; call it once all have opened it. Does nothing if there is none.
    static void remove(const std::string& name);

    std::atomic<Time>& operator[](std::size_t index) const;

private:
    static void unmap(void* memory) noexcept;
    explicit SharedTimes(void* memory) : memory_(memory) {}
    static SharedTimes map(const std::string& name, int flags);

    Handle<void*, unmap> memory_;
};

}  // namespace nearstep::link
