// Host memory for I/O and for the parameter vector.
#pragma once

#include "base/error.hpp"

#include <cstddef>
#include <span>

namespace nearstep::memory {

// Zeroed anonymous memory, 2 MiB aligned, on huge pages where the kernel grants them (they double
// the rate of direct I/O), touched at construction. Sole owner; allocated at start, not in a step.
class Buffer {
public:
    Buffer() = default;
    // Throws Error naming the size if the memory cannot be had. `bytes` may be 0.
    explicit Buffer(std::size_t bytes);
    // As above, but on ordinary pages that take memory only once they are written. Those that
    // drop() gave back are zero and untouched again; `offset` and `bytes` are multiples of 64 KiB.
    static Buffer untouched(std::size_t bytes);
    void drop(std::size_t offset, std::size_t bytes);
    // The first `bytes` of a file of memory, which other processes may have, too; see
    // shared_memory.hpp. Throws Error if it cannot be mapped.
    static Buffer of_file(int descriptor, std::size_t bytes);
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();

    std::size_t size() const { return bytes_; }
    std::span<std::byte> span() { return {data_, bytes_}; }
    std::span<const std::byte> span() const { return {data_, bytes_}; }

    // All of it as elements of T; the size must be a multiple of sizeof(T).
    template <typename T>
    std::span<T> as() {
        expects(bytes_ % sizeof(T) == 0, "the buffer holds whole elements");
        return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
    }

    // Bytes of the buffer that take memory now.
    std::size_t resident_bytes() const;
    // Bytes of the buffer that huge pages back now, from /proc/self/smaps.
    std::size_t huge_page_bytes() const;

private:
    void release() noexcept;

    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    std::size_t mapped_bytes_ = 0;
};

}  // namespace nearstep::memory
