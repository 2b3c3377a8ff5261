// Host memory for I/O and for the parameter vector.
#pragma once

#include "base/error.hpp"

#include <cstddef>
#include <memory>
#include <span>

namespace nearstep::memory {

struct Unmap {
    std::size_t bytes = 0;
    void operator()(std::byte* memory) const noexcept;
};

// Sole owner of host memory; allocated at start, not during a step.
class Buffer {
public:
    Buffer() = default;
    // Zeroed memory, 2 MiB aligned, on huge pages if the kernel grants them (they double the rate
    // of direct I/O), touched at once. Throws Error naming the size if it fails. `bytes` may be 0.
    explicit Buffer(std::size_t bytes);
    // Zeroed memory on ordinary pages, which take memory only once written. drop() makes a range
    // zero and untouched again; `offset` and `bytes` are multiples of 64 KiB.
    static Buffer untouched(std::size_t bytes);
    void drop(std::size_t offset, std::size_t bytes);
    // Maps the first `bytes` of a memory file, which other processes may share; see
    // shared_memory.hpp. Throws Error if it cannot be mapped.
    static Buffer of_file(int descriptor, std::size_t bytes);
    std::size_t size() const { return memory_ ? bytes_ : 0; }
    std::span<std::byte> span() { return {memory_.get(), size()}; }
    std::span<const std::byte> span() const { return {memory_.get(), size()}; }

    // The whole buffer as elements of T; its size must be a multiple of sizeof(T).
    template <typename T>
    std::span<T> as() {
        expects(size() % sizeof(T) == 0, "the buffer holds whole elements");
        return {reinterpret_cast<T*>(memory_.get()), size() / sizeof(T)};
    }

    // Bytes of the buffer that take memory now.
    std::size_t resident_bytes() const;

private:
    friend std::size_t huge_page_bytes(std::span<const Buffer* const> buffers);
    Buffer(void* mapped, std::size_t mapped_bytes, std::size_t bytes);

    std::unique_ptr<std::byte, Unmap> memory_;
    std::size_t bytes_ = 0;
};

// Bytes of the buffers on huge pages now, from /proc/self/smaps. The kernel counts the pages of
// each mapping for it: milliseconds.
std::size_t huge_page_bytes(std::span<const Buffer* const> buffers);

}  // namespace nearstep::memory
