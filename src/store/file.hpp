// A file of device state: direct I/O of whole pages, space reserved in advance, used by one process
// at a time.
#pragma once

#include "base/descriptor.hpp"
#include "base/plain_file.hpp"
#include "base/wording.hpp"
#include "memory/buffer.hpp"
#include "store/storage.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::store {

// Offsets, sizes and addresses of all transfers are multiples of this.
constexpr std::size_t kPageBytes = 4096;
// Most pieces of one system call: IOV_MAX on Linux.
constexpr std::size_t kMostPieces = 1024;

// flush: what was written survives a power cut; it has one piece, without bytes.
enum class Direction { read, write, flush };

// A transfer, or the rest of one: pieces of memory that are contiguous in the file.
struct IoRequest {
    Direction direction = Direction::read;
    std::vector<iovec> pieces;
    std::int64_t offset = 0;
    std::size_t first = 0;  // first of the pieces that are left

    bool is_complete() const { return first == pieces.size(); }

    static IoRequest flush() { return {Direction::flush, {{nullptr, 0}}}; }
};

// Replaces the kernel's result of a call (bytes moved or a negative errno) before it is used. Runs
// on the thread that made the transfer. May be empty; tests inject faults here.
using ResultFilter = std::function<std::int64_t(const IoRequest& request, std::int64_t result)>;

// Any thread may read and write; calls may overlap if their ranges do not. I/O bypasses the page
// cache (O_DIRECT). If the filesystem refuses that, it is logged once and I/O is buffered.
class File {
public:
    // Opens the file if it is there, and locks it until it is closed. Waits up to 5 s for an owner
    // that is ending. Throws PathError if it cannot be opened, and ConfigError if another process
    // or another File holds it. `storage` carries out the calls and outlives the file; null: the
    // system itself. `key`: what names its folder, for messages.
    explicit File(std::string path, Storage* storage = nullptr, Term key = Term::path);
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File();

    // Makes the file, empty and locked, with its folder, if it was not there. Throws as the
    // constructor. A start that may still be refused does not call this.
    void claim();
    // Removes the name of a file that claim() made. The open file stays usable.
    void withdraw();

    // Claims the file, replaces the content by `bytes` zeros and reserves their space, so that no
    // later write runs out of space. The file and its name then survive a power cut. Throws
    // PathError naming the bytes needed and free.
    void reserve(std::size_t bytes);

    // Transfers all bytes, or throws IoError naming file, offset, reason and what to do:
    // DamageError if the file is not there.
    void transfer(IoRequest request, const ResultFilter& filter = {});

    // The parts of transfer(), for callers that use descriptor() themselves. prepare() checks the
    // request's alignment and drops empty pieces.
    // complete() applies the result of one call (bytes moved or a negative errno) for the request's
    // pieces from `first` on. The caller repeats the call until the request is complete.
    // `was_direct` is is_direct() before that call. Throws IoError if a retry cannot help.
    static void prepare(IoRequest& request);
    void complete(IoRequest& request, bool was_direct, std::int64_t result);

    // Reserves space in the file, or gives it back: then it holds zeros. allocate() throws as
    // reserve() does.
    void allocate(std::int64_t offset, std::size_t bytes);
    void free(std::int64_t offset, std::size_t bytes);

    // Maps the first `bytes` of a file that lies in memory, and `more` after them, which have no
    // space yet. A shorter file grows; what it lacked is zeros.
    memory::Buffer map(std::size_t bytes, std::size_t more = 0);

    // Bytes that the file has now; 0 if it is not there.
    std::size_t held_bytes() const;

    // Returns when all written data would survive a power cut.
    void sync();

    const std::string& path() const { return path_; }
    bool is_direct() const { return is_direct_; }
    // True on tmpfs and ramfs, where direct I/O copies as well.
    bool lies_in_memory() const { return lies_in_memory_; }
    int descriptor() const { return descriptor_.get(); }

private:
    bool hold(PlainFile opened);
    void lock();
    void bypass_page_cache(bool yes);
    void allocate(std::int64_t offset, std::size_t bytes, std::size_t free_bytes);
    [[noreturn]] void refuse_absence(const char* verb) const;
    [[noreturn]] void fail(const char* verb, std::int64_t offset, int reason) const;

    std::string path_;
    Storage system_;
    Storage* storage_;
    Term key_;
    Descriptor descriptor_;
    pid_t owner_ = ::getpid();
    std::atomic<bool> is_direct_{false};
    bool lies_in_memory_ = false;
    bool is_made_ = false;
};

}  // namespace nearstep::store
