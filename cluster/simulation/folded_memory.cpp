// Makes large allocations of a timed simulation share one small piece of memory.
//
// A thousand ranks in one process have buffers of some MiB each, whose contents do not affect
// times. If NEARSTEP_FOLDED names a file, every allocation of 1 MiB or more maps that file's first
// pages again and again. Otherwise this is the usual allocator.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kWindowBytes = std::size_t{8} << 20U;
constexpr std::size_t kLeastBytes = std::size_t{1} << 20U;
constexpr std::uintptr_t kPageBytes = 4096;

void* fold(const char* path, std::size_t bytes) {
    const int file = open(path, O_RDWR | O_CREAT, 0600);
    const bool is_open = file >= 0 && ftruncate(file, kWindowBytes) == 0;
    void* start =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool is_mapped = is_open && start != MAP_FAILED;
    for (std::size_t at = 0; is_mapped && at < bytes; at += kWindowBytes) {
        const std::size_t part = bytes - at < kWindowBytes ? bytes - at : kWindowBytes;
        is_mapped = mmap(static_cast<std::byte*>(start) + at, part, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    }
    if (file >= 0) {
        close(file);
    }
    return is_mapped ? start : nullptr;
}

}  // namespace

void* operator new(std::size_t bytes) {
    const char* path = bytes >= kLeastBytes ? std::getenv("NEARSTEP_FOLDED") : nullptr;
    void* memory = path != nullptr ? fold(path, bytes) : std::malloc(bytes);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}

// Folded memory starts at a page boundary, which malloc's never does. It stays until the process
// ends.
void operator delete(void* memory) noexcept {
    if (reinterpret_cast<std::uintptr_t>(memory) % kPageBytes != 0) {
        std::free(memory);
    }
}

void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
