// System calls on state files, with faults on request. Used by File and ManifestFile.
#include "store/storage.hpp"

#include "base/folder_tree.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace nearstep::store {

ssize_t Storage::read(int file, const iovec* pieces, int count, off_t offset) {
    return ::preadv(file, pieces, count, offset);
}

ssize_t Storage::write(int file, const iovec* pieces, int count, off_t offset) {
    return ::pwritev(file, pieces, count, offset);
}

int Storage::write_all(int file, std::span<const std::byte> bytes, off_t offset) {
    for (std::size_t done = 0; done < bytes.size();) {
        // iovec has no const; writing does not change the memory.
        const iovec piece{const_cast<std::byte*>(bytes.data()) + done, bytes.size() - done};
        const ssize_t count = write(file, &piece, 1, offset + static_cast<off_t>(done));
        if (count < 0 && errno != EINTR) {
            return -1;
        }
        done += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    return 0;
}

int Storage::flush(int file) { return ::fdatasync(file); }

int Storage::rename(const std::string& from, const std::string& to) {
    return std::rename(from.c_str(), to.c_str());
}

int Storage::flush_folder(const std::string& folder) {
    const int code = nearstep::flush_folder(folder);
    errno = code;
    return code == 0 ? 0 : -1;
}

bool FaultyStorage::fails(FaultPhase phase, const std::function<void()>& before_end) {
    switch (points_->arrive(phase)) {
        case FaultAction::kill:
            if (before_end) {
                before_end();
            }
            end_process_at_once();
        case FaultAction::fail:
            errno = EIO;
            return true;
        case FaultAction::full:
            errno = ENOSPC;
            return true;
        case FaultAction::stop:
        case FaultAction::none:
            break;
    }
    return false;
}

ssize_t FaultyStorage::read(int file, const iovec* pieces, int count, off_t offset) {
    return fails(FaultPhase::mid_read) ? -1 : Storage::read(file, pieces, count, offset);
}

ssize_t FaultyStorage::write(int file, const iovec* pieces, int count, off_t offset) {
    const auto write_half = [&] {
        if (count > 1) {
            Storage::write(file, pieces, count / 2, offset);
        } else {
            // Half the piece, in whole pages for direct I/O.
            const iovec half{pieces->iov_base, pieces->iov_len / 2 / 4096 * 4096};
            Storage::write(file, &half, 1, offset);
        }
    };
    return fails(FaultPhase::mid_write, write_half) ? -1
                                                    : Storage::write(file, pieces, count, offset);
}

int FaultyStorage::flush(int file) {
    if (fails(FaultPhase::before_flush)) {
        return -1;
    }
    const int result = Storage::flush(file);
    return fails(FaultPhase::after_flush) ? -1 : result;
}

int FaultyStorage::rename(const std::string& from, const std::string& to) {
    if (fails(FaultPhase::before_rename)) {
        return -1;
    }
    const int result = Storage::rename(from, to);
    return fails(FaultPhase::after_rename) ? -1 : result;
}

}  // namespace nearstep::store
