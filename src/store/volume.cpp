// A device's bytes in its files. Used by StateVolume.
#include "store/volume.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace nearstep::store {

namespace {

std::size_t bytes_of(const IoRequest& request) {
    return std::accumulate(request.pieces.begin(), request.pieces.end(), std::size_t{0},
                           [](std::size_t sum, const iovec& piece) { return sum + piece.iov_len; });
}

}  // namespace

Volume::Volume(const VolumeSettings& settings)
    // A single file is one endless chunk.
    : bytes_(settings.bytes + settings.more_bytes),
      bytes_of_file_(file_bytes(settings)),
      more_bytes_(settings.more_bytes),
      chunk_bytes_(settings.files.size() == 1 ? std::max(bytes_, kPageBytes)
                                              : settings.chunk_bytes),
      paths_(settings.paths),
      pacer_(settings.pacer),
      written_(settings.files.size()) {
    expects(!settings.files.empty(), "a volume has a file");
    expects(settings.files.size() == 1 || more_bytes_ == 0, "one file may have more bytes");
    expects(settings.chunk_bytes > 0 && settings.chunk_bytes % kPageBytes == 0,
            "chunks are whole pages");
    std::vector<File*> files;
    for (const std::string& path : settings.files) {
        files_.push_back(std::make_unique<File>(path, settings.storage));
        files.push_back(files_.back().get());
    }
    // io_uring would bypass the caller's storage.
    const IoKind io = settings.storage != nullptr ? IoKind::threads : settings.io;
    transport_ = Transport::make(io, files, settings.filter);
    expects(paths_.empty() || (paths_.size() == files.size() && pacer_ != nullptr),
            "every file of a shaped volume has its paths");
    is_mapped_ = files.size() == 1 && files.front()->lies_in_memory() && paths_.empty() &&
                 settings.io == IoKind::automatic && settings.storage == nullptr &&
                 !settings.filter;
}

void Volume::claim() {
    for (const std::unique_ptr<File>& file : files_) {
        file->claim();
    }
}

void Volume::withdraw() {
    for (const std::unique_ptr<File>& file : files_) {
        file->withdraw();
    }
}

void Volume::reserve() {
    for (const std::unique_ptr<File>& file : files_) {
        file->reserve(bytes_of_file_);
    }
}

void Volume::allocate(std::int64_t offset, std::size_t bytes) {
    files_.front()->allocate(offset, bytes);
}

void Volume::free(std::int64_t offset, std::size_t bytes) { files_.front()->free(offset, bytes); }

std::size_t Volume::file_bytes(const VolumeSettings& settings) {
    if (settings.files.size() == 1) {
        return round_up(settings.bytes, kPageBytes);
    }
    const std::size_t stripe_bytes = settings.chunk_bytes * settings.files.size();
    return round_up(settings.bytes, stripe_bytes) / settings.files.size();
}

std::vector<IoRequest> Volume::parts_of(Direction direction, std::span<std::byte> memory,
                                        std::int64_t offset) const {
    const auto begin = static_cast<std::size_t>(offset);
    expects(offset >= 0 && begin + memory.size() <= bytes_, "a transfer lies within the volume");
    std::vector<IoRequest> parts(files_.size());
    for (std::size_t done = 0; done < memory.size();) {
        const std::size_t chunk = (begin + done) / chunk_bytes_;
        const std::size_t within = (begin + done) % chunk_bytes_;
        const std::size_t count = std::min(chunk_bytes_ - within, memory.size() - done);
        IoRequest& part = parts[chunk % files_.size()];
        if (part.pieces.empty()) {
            part.direction = direction;
            part.offset = static_cast<std::int64_t>(chunk / files_.size() * chunk_bytes_ + within);
        }
        part.pieces.push_back({memory.data() + done, count});
        done += count;
    }
    return parts;
}

Ticket Volume::submit(Direction direction, std::span<std::byte> memory, std::int64_t offset,
                      Speed speed) {
    std::vector<IoRequest> parts = parts_of(direction, memory, offset);
    const bool is_shaped = !paths_.empty() && speed == Speed::shaped;
    const shaping::Time ready = is_shaped ? pacer_->now() : 0;
    Ticket all;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::size_t bytes = bytes_of(parts[i]);
        if (bytes == 0) {
            continue;
        }
        if (direction == Direction::write) {
            written_[i].fetch_add(bytes, std::memory_order_relaxed);
        }
        if (is_shaped) {
            const shaping::DrivePaths& paths = paths_[i];
            all.add(pacer_->cross(direction == Direction::read ? paths.read : paths.write, bytes,
                                  ready));
        }
        all.add(transport_->submit(i, std::move(parts[i])));
    }
    return all;
}

Ticket Volume::read(std::span<std::byte> to, std::int64_t offset, Speed speed) {
    return submit(Direction::read, to, offset, speed);
}

Ticket Volume::write(std::span<const std::byte> from, std::int64_t offset, Speed speed) {
    // Requests have the type that reads use; writing does not change the memory.
    return submit(Direction::write, {const_cast<std::byte*>(from.data()), from.size()}, offset,
                  speed);
}

std::span<std::byte> Volume::map(std::int64_t offset, std::size_t bytes) {
    expects(is_mapped_, "the file lies in memory");
    std::call_once(is_first_map_,
                   [this] { mapping_ = files_.front()->map(bytes_of_file_, more_bytes_); });
    return mapping_.span().subspan(static_cast<std::size_t>(offset), bytes);
}

std::vector<std::uint64_t> Volume::written_bytes() const {
    std::vector<std::uint64_t> bytes;
    for (const auto& written : written_) {
        bytes.push_back(written.load(std::memory_order_relaxed));
    }
    return bytes;
}

Ticket Volume::sync() {
    Ticket all;
    for (std::size_t i = 0; i < files_.size(); ++i) {
        all.add(transport_->submit(i, IoRequest::flush()));
    }
    return all;
}

bool Volume::is_direct() const {
    return std::ranges::all_of(
        files_, [](const auto& file) { return file->is_direct() && !file->lies_in_memory(); });
}

std::string Volume::describe_place(std::int64_t offset) const {
    const std::size_t chunk = static_cast<std::size_t>(offset) / chunk_bytes_;
    const std::size_t within = static_cast<std::size_t>(offset) % chunk_bytes_;
    const std::string place = text("offset ", chunk / files_.size() * chunk_bytes_ + within,
                                   " of \"", files_[chunk % files_.size()]->path(), "\"");
    return files_.size() == 1 ? place : text(place, " (striped over ", files_.size(), " files)");
}

}  // namespace nearstep::store
