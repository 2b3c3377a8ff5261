// A storage that loses power at a planned moment, and loses data that was not flushed.
#pragma once

#include "base/random.hpp"
#include "store/storage.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::store {

// Works on real files. Writes and renames take effect at once. The storage remembers what a power
// cut can still undo: the contents of each sector since its file's last flush, and the old target
// of each rename until its folder is flushed. crash() then decides at random, by sector, what the
// drive kept. State files are reserved and flushed before, so their sizes are fixed. Any thread may
// call.
class PowerLossStorage : public Storage {
public:
    explicit PowerLossStorage(std::size_t sector_bytes) : sector_bytes_(sector_bytes) {}

    // Every write, flush and rename from number `operations` on fails because the power is gone.
    void cut_after(std::int64_t operations) {
        const std::lock_guard lock(mutex_);
        left_ = operations;
    }
    // Flushes report success but do nothing.
    void lie_about_flushes() { is_lying_ = true; }
    bool has_power() const { return left_ > 0; }
    std::int64_t operations_left() const { return left_; }
    std::size_t sectors_lost() const { return lost_; }

    ssize_t write(int file, const iovec* pieces, int count, off_t offset) override;
    int flush(int file) override;
    int rename(const std::string& from, const std::string& to) override;
    int flush_folder(const std::string& folder) override;

    // Call after the cut, with the files closed: decides what the drive kept and restores power.
    void crash(std::uint64_t seed);

private:
    using Versions = std::vector<std::vector<std::byte>>;  // of a sector, oldest first
    struct Renamed {
        std::string name;
        std::optional<std::string> content_before;
    };

    bool use_power() {
        if (left_ == 0) {
            errno = EIO;
            return false;
        }
        --left_;
        return true;
    }
    static std::string path_of(int file) {
        return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file)).string();
    }
    static std::optional<std::string> content_of(const std::string& path) {
        std::ifstream file(path, std::ios::binary);
        return file ? std::optional(std::string(std::istreambuf_iterator<char>(file), {}))
                    : std::nullopt;
    }
    void remember(const std::string& path, std::int64_t begin, std::int64_t end);
    std::uint64_t draw() { return random_bits(seed_, 0, drawn_++); }

    std::size_t sector_bytes_;
    std::mutex mutex_;
    std::int64_t left_ = std::int64_t{1} << 62;
    bool is_lying_ = false;
    std::size_t lost_ = 0;
    std::uint64_t seed_ = 0;
    std::uint64_t drawn_ = 0;
    std::map<std::string, std::map<std::int64_t, Versions>> unflushed_;
    std::vector<Renamed> renamed_;
};

inline void PowerLossStorage::remember(const std::string& path, std::int64_t begin,
                                       std::int64_t end) {
    const auto sector = static_cast<std::int64_t>(sector_bytes_);
    const std::int64_t first = begin / sector;
    const std::int64_t past = (end + sector - 1) / sector;
    std::vector<std::byte> before(static_cast<std::size_t>((past - first) * sector));
    std::ifstream file(path, std::ios::binary);
    file.seekg(first * sector);
    file.read(reinterpret_cast<char*>(before.data()), static_cast<std::streamsize>(before.size()));
    // Data beyond the end of the file counts as zero.
    for (std::int64_t number = first; number < past; ++number) {
        const auto from = before.begin() + (number - first) * sector;
        unflushed_[path][number].emplace_back(from, from + sector);
    }
}

inline ssize_t PowerLossStorage::write(int file, const iovec* pieces, int count, off_t offset) {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (int i = 0; i < count; ++i) {
        bytes += pieces[i].iov_len;
    }
    if (left_ == 0) {
        errno = EIO;
        return -1;
    }
    remember(path_of(file), offset, offset + static_cast<std::int64_t>(bytes));
    const ssize_t done = Storage::write(file, pieces, count, offset);
    // The write in progress at the cut may reach the drive, but the caller sees a failure.
    return use_power() && left_ > 0 ? done : (errno = EIO, -1);
}

inline int PowerLossStorage::flush(int file) {
    const std::lock_guard lock(mutex_);
    if (!use_power()) {
        return -1;
    }
    if (!is_lying_) {
        unflushed_.erase(path_of(file));
    }
    return 0;
}

inline int PowerLossStorage::rename(const std::string& from, const std::string& to) {
    const std::lock_guard lock(mutex_);
    if (!use_power()) {
        return -1;
    }
    renamed_.push_back({to, content_of(to)});
    const auto moved = unflushed_.extract(from);
    unflushed_.erase(to);
    if (!moved.empty()) {
        unflushed_[to] = moved.mapped();
    }
    return Storage::rename(from, to);
}

inline int PowerLossStorage::flush_folder(const std::string& folder) {
    const std::lock_guard lock(mutex_);
    if (!use_power()) {
        return -1;
    }
    if (!is_lying_) {
        std::erase_if(renamed_, [&](const Renamed& one) {
            return std::filesystem::path(one.name).parent_path() == folder;
        });
    }
    return 0;
}

inline void PowerLossStorage::crash(std::uint64_t seed) {
    seed_ = seed;
    drawn_ = 0;
    for (const auto& [path, sectors] : unflushed_) {
        // A file loses all, most, some or no sectors, so that both extremes are common.
        const std::uint64_t keep_of_8 = std::array<std::uint64_t, 4>{0, 1, 4, 8}.at(draw() % 4);
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        for (const auto& [number, versions] : sectors) {
            if (draw() % 8 >= keep_of_8) {
                const std::vector<std::byte>& kept = versions[draw() % versions.size()];
                file.seekp(number * static_cast<std::int64_t>(sector_bytes_));
                file.write(reinterpret_cast<const char*>(kept.data()),
                           static_cast<std::streamsize>(kept.size()));
                ++lost_;
            }
        }
    }
    // Undoes a random number of renames from the last one back, because names change in order.
    for (std::size_t undo = renamed_.empty() ? 0 : draw() % (renamed_.size() + 1); undo > 0;
         --undo) {
        const Renamed& last = renamed_.back();
        if (last.content_before) {
            std::ofstream(last.name, std::ios::binary) << *last.content_before;
        } else {
            std::filesystem::remove(last.name);
        }
        renamed_.pop_back();
    }
    unflushed_.clear();
    renamed_.clear();
    left_ = std::int64_t{1} << 62;
}

}  // namespace nearstep::store
