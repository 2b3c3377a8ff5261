// Times of links in memory that the processes of a node share.
#pragma once

#include "base/handle.hpp"
#include "link/clock.hpp"

#include <atomic>
#include <cstddef>
#include <string>

namespace nearstep::link {

// Named from create() to remove(); the memory itself goes with the last process that has it, also
// with one that is killed. Nothing in it can be held: a killed process leaves the others going.
class SharedTimes {
public:
    // A name that no other run has.
    static std::string unused_name();

    // Throw ConfigError if the system has no shared memory for us. The times of a new one are 0.
    static SharedTimes create(const std::string& name);
    static SharedTimes open(const std::string& name);

    // Takes the name away, when all have opened it. Nothing if there is none.
    static void remove(const std::string& name);

    std::atomic<Time>& operator[](std::size_t index) const;

private:
    struct Mapping {
        using Type = void*;
        static Type empty() { return nullptr; }
        static void close(Type memory) noexcept;
    };

    explicit SharedTimes(void* memory) : memory_(memory) {}
    static SharedTimes map(const std::string& name, int flags);

    Handle<Mapping> memory_;
};

}  // namespace nearstep::link
