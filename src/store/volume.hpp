// One byte space over the state files of a device: a single file, or several in stripes (RAID 0).
#pragma once

#include "base/executor.hpp"
#include "base/units.hpp"
#include "memory/buffer.hpp"
#include "shaping/node_links.hpp"
#include "store/file.hpp"
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
    std::vector<std::string> files;  // at least one
    std::size_t bytes = 0;
    std::size_t more_bytes = 0;           // after them, of one file: not reserved, see allocate()
    std::size_t chunk_bytes = 128 * KiB;  // size of a stripe chunk
    IoKind io = IoKind::automatic;
    ResultFilter filter = {};
    Storage* storage = nullptr;  // used by the files, see File; then threads move the data
    // The links of each file, and what paces transfers over them and outlives the volume; empty:
    // links are not shaped.
    std::vector<shaping::DrivePaths> paths = {};
    shaping::Pacer* pacer = nullptr;
};

// shaped: a transfer completes no earlier than its links allow. full: not limited, for transfers
// outside a step.
enum class Speed { shaped, full };

// Transfers of different files proceed at once. Any thread may submit. The memory of a transfer
// stays valid until its ticket was waited for. Alignment: kPageBytes.
class Volume {
public:
    // Opens and locks the files that are there; their content stays. Throws as File and
    // Transport::make do.
    explicit Volume(const VolumeSettings& settings);

    // See File.
    void claim();
    void withdraw();

    // Replaces the files' content by zeros and reserves their space. Throws as File does.
    void reserve();

    // Reserves space after the reserved bytes, and gives it back. Throws as reserve().
    void allocate(std::int64_t offset, std::size_t bytes);
    void free(std::int64_t offset, std::size_t bytes);

    // Bytes of each file that are reserved.
    static std::size_t file_bytes(const VolumeSettings& settings);

    // Bytes that the first file has now.
    std::size_t held_bytes() const { return files_.front()->held_bytes(); }

    Ticket read(std::span<std::byte> to, std::int64_t offset, Speed speed = Speed::shaped);
    Ticket write(std::span<const std::byte> from, std::int64_t offset, Speed speed = Speed::shaped);

    // True if map() may be called: the only file lies in memory (tmpfs), `io` is automatic, and
    // transfers are neither shaped nor filtered.
    bool is_mapped() const { return is_mapped_; }
    // Bytes of the mapped file, valid once they were reserved; their address is fixed. Changing
    // them changes the file; call note_written() to count that.
    std::span<std::byte> map(std::int64_t offset, std::size_t bytes);
    void note_written(std::size_t bytes) { written_.front().fetch_add(bytes); }

    // Bytes written to each file since it was opened, except by reserve().
    std::vector<std::uint64_t> written_bytes() const;

    // Data written and waited for survives a power cut once the ticket is complete.
    Ticket sync();

    // The place of a byte, for messages: `offset 8192 of "FILE"`.
    std::string describe_place(std::int64_t offset) const;

    // The transport in use; never automatic.
    IoKind io() const { return transport_->kind(); }
    // False if one of the files needs the page cache or lies in it.
    bool is_direct() const;

private:
    Ticket submit(Direction direction, std::span<std::byte> memory, std::int64_t offset,
                  Speed speed);
    // The part of a transfer in each file.
    std::vector<IoRequest> parts_of(Direction direction, std::span<std::byte> memory,
                                    std::int64_t offset) const;

    std::size_t bytes_;
    std::size_t bytes_of_file_;
    std::size_t more_bytes_;
    std::size_t chunk_bytes_;
    std::vector<shaping::DrivePaths> paths_;  // empty: not shaped
    shaping::Pacer* pacer_;
    std::vector<std::unique_ptr<File>> files_;
    std::vector<std::atomic<std::uint64_t>> written_;  // per file
    std::unique_ptr<Transport> transport_;             // declared after files_: ends first
    bool is_mapped_ = false;
    std::once_flag is_first_map_;
    memory::Buffer mapping_;
};

}  // namespace nearstep::store
