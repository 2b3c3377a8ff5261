// The system calls that state files and manifests make. Tests inject faults here.
#pragma once

#include "base/fault_point.hpp"

#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace nearstep::store {

// Plain system calls, with their results and errno. Any thread may call.
class Storage {
public:
    Storage() = default;
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;
    virtual ~Storage() = default;

    virtual ssize_t read(int file, const iovec* pieces, int count, off_t offset);
    virtual ssize_t write(int file, const iovec* pieces, int count, off_t offset);
    // Writes all bytes. Returns 0, or -1 with errno set.
    int write_all(int file, std::span<const std::byte> bytes, off_t offset);
    // On success the file's data and size survive a power cut.
    virtual int flush(int file);
    virtual int rename(const std::string& from, const std::string& to);
    // On success the names in the folder survive a power cut.
    virtual int flush_folder(const std::string& folder);
};

// Ends the process, or fails with EIO or ENOSPC, at the given fault points. Phases: mid_read,
// mid_write, before_flush, after_flush, before_rename and after_rename.
class FaultyStorage : public Storage {
public:
    // The points outlive the storage.
    explicit FaultyStorage(FaultPoints& points) : points_(&points) {}

    ssize_t read(int file, const iovec* pieces, int count, off_t offset) override;
    ssize_t write(int file, const iovec* pieces, int count, off_t offset) override;
    int flush(int file) override;
    int rename(const std::string& from, const std::string& to) override;

private:
    // True if the operation must fail; errno is then set. `before_end` runs before a kill.
    bool fails(FaultPhase phase, const std::function<void()>& before_end = nullptr);

    FaultPoints* points_;
};

}  // namespace nearstep::store
