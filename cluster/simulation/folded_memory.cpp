// Makes large allocations of a timed simulation share memory, and keeps them out of copies.
//
// A thousand ranks in one process have buffers of some MiB each, whose contents do not affect
// times. If NEARSTEP_FOLDED is set, every allocation of 1 MiB or more is SMPI's shared memory: all
// ranks' allocations of a size have the same pages, and SMPI does not copy messages that lie there.
// Otherwise this is the usual allocator.
#include <smpi/smpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kLeastBytes = std::size_t{1} << 20U;
constexpr std::uintptr_t kPageBytes = 4096;

}  // namespace

void* operator new(std::size_t bytes) {
    const bool is_folded = bytes >= kLeastBytes && std::getenv("NEARSTEP_FOLDED") != nullptr;
    // SMPI tells allocations apart by a line of the source.
    void* memory = is_folded ? smpi_shared_malloc(bytes, __FILE__, static_cast<int>(bytes / 16))
                             : std::malloc(bytes);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}

// Shared memory starts at a page boundary, which malloc's never does. It stays until the process
// ends.
void operator delete(void* memory) noexcept {
    if (reinterpret_cast<std::uintptr_t>(memory) % kPageBytes != 0) {
        std::free(memory);
    }
}

void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

// The library's would call its own operator new.
void* operator new[](std::size_t bytes) { return operator new(bytes); }

void operator delete[](void* memory) noexcept { operator delete(memory); }

void operator delete[](void* memory, std::size_t) noexcept { operator delete(memory); }
