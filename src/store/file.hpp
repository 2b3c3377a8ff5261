// A file of device state: direct I/O of whole pages, space reserved in advance, one process at a
// time.
#pragma once

#include "base/handle.hpp"
#include "store/storage.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nearstep::store {

// Offsets, sizes and addresses of all transfers are multiples of this.
constexpr std::size_t kPageBytes = 4096;

// Any thread may read and write, different places at once. The page cache is bypassed (O_DIRECT)
// where the filesystem can; where it refuses, this is logged once and I/O is buffered.
class File {
public:
    // Opens the file, or makes it empty, and locks it until it is closed. Throws ConfigError if it
    // cannot be opened or another process, or another File, holds it.
    // `storage`: what carries the calls out, which outlives the file; null: the system itself.
    explicit File(std::string path, Storage* storage = nullptr);

    // Replaces the content by `bytes` zeros whose space is reserved, so that no write later can run
    // out of it; the file and its name then outlive a power cut. Throws ConfigError naming the
    // bytes needed and free.
    void reserve(std::size_t bytes);

    // Transfer all of it, or throw IoError naming file, offset, reason and what to do.
    void read_at(std::span<std::byte> to, std::int64_t offset);
    void write_at(std::span<const std::byte> from, std::int64_t offset);

    // The same with memory in several pieces that follow one another in the file.
    void read_pieces(std::vector<iovec> to, std::int64_t offset);
    void write_pieces(std::vector<iovec> from, std::int64_t offset);

    // Returns when all that was written would survive a power cut.
    void sync();

    const std::string& path() const { return path_; }
    bool is_direct() const { return is_direct_; }

private:
    struct Descriptor {
        using Type = int;
        static int empty() { return -1; }
        static void close(int descriptor) noexcept { ::close(descriptor); }
    };
    using Call = ssize_t (Storage::*)(int, const iovec*, int, off_t);

    void lock();
    void bypass_page_cache(bool yes);
    void allocate(std::size_t bytes, std::size_t free_bytes);
    void transfer(const char* verb, Call call, std::vector<iovec> pieces, std::int64_t offset);
    [[noreturn]] void fail(const char* verb, std::int64_t offset, int reason) const;

    std::string path_;
    Storage system_;
    Storage* storage_;
    Handle<Descriptor> descriptor_;
    std::atomic<bool> is_direct_{false};
};

}  // namespace nearstep::store
