// One byte space over the state files of a device: a single file, or several in stripes (RAID 0).
#pragma once

#include "base/units.hpp"
#include "memory/buffer.hpp"
#include "store/file.hpp"
#include "store/pacer.hpp"
#include "store/ticket.hpp"
#include "store/transport.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace nearstep::store {

struct VolumeSettings {
    std::vector<std::string> files;  // one at least
    std::size_t bytes = 0;
    std::size_t chunk_bytes =
        128 * KiB;  // of the space that lie in one file before the next one follows
    IoKind io = IoKind::automatic;
    ResultFilter filter = {};
    Storage* storage = nullptr;  // under the files, see File; then threads move the data
    // What each file's transfers cross, and the clock, which outlive the volume; empty: the links
    // are not shaped.
    std::vector<link::DrivePaths> paths = {};
    const link::Clock* clock = nullptr;
};

// shaped: a transfer is complete no earlier than its links allow, if they are shaped. full: outside
// of a step.
enum class Speed { shaped, full };

// Reads and writes of all files proceed at once. Any thread may submit; the memory of a transfer
// stays valid until its ticket was waited for. Alignment: kPageBytes.
class Volume {
public:
    // Opens and locks the files; their content stays. Throws as File and Transport::make do.
    explicit Volume(const VolumeSettings& settings);

    // Replaces what the files hold by zeros whose space is reserved. Throws as File does.
    void reserve();

    // Bytes that each file takes.
    static std::size_t file_bytes(const VolumeSettings& settings);

    Ticket read(std::span<std::byte> to, std::int64_t offset, Speed speed = Speed::shaped);
    Ticket write(std::span<const std::byte> from, std::int64_t offset, Speed speed = Speed::shaped);

    // Whether map() may be called: the only file lies in memory (tmpfs), `io` is automatic, and
    // nothing shapes or replaces transfers.
    bool is_mapped() const { return is_mapped_; }
    // Bytes of the file itself, once it was reserved; they stay where they are. Changing them
    // writes them; note_written() counts that. Throws DamageError if the file is too short.
    std::span<std::byte> map(std::int64_t offset, std::size_t bytes);
    void note_written(std::size_t bytes) { written_.front().fetch_add(bytes); }

    // Bytes written to each file since it was opened, without those that reserve() wrote.
    std::vector<std::uint64_t> written_bytes() const;

    // What was written and waited for outlives a power cut once the ticket is complete.
    Ticket sync();

    // Where a byte of the space lies, for messages: `offset 8192 of "FILE"`.
    std::string describe_place(std::int64_t offset) const;

    // How transfers reach the kernel; never automatic.
    IoKind io() const { return transport_->kind(); }
    // False as soon as one of the files needs the page cache or lies in it.
    bool is_direct() const;

private:
    Ticket submit(Direction direction, std::span<std::byte> memory, std::int64_t offset,
                  Speed speed);
    // What a transfer has in each file.
    std::vector<Request> parts_of(Direction direction, std::span<std::byte> memory,
                                  std::int64_t offset) const;

    std::size_t bytes_;
    std::size_t bytes_of_file_;
    std::size_t chunk_bytes_;
    std::vector<std::unique_ptr<File>> files_;
    std::vector<std::atomic<std::uint64_t>> written_;  // per file
    std::unique_ptr<Transport> transport_;             // behind its files: it ends before them
    std::unique_ptr<Pacer> pacer_;                     // null: not shaped
    bool is_mapped_ = false;
    std::once_flag is_first_map_;
    memory::Buffer mapping_;
    Lane flushes_;
};

}  // namespace nearstep::store
