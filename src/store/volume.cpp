#include "store/volume.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::store {

Volume::Volume(const VolumeSettings& settings)
    // A single file is one endless chunk.
    : bytes_(settings.bytes),
      bytes_of_file_(file_bytes(settings)),
      chunk_bytes_(settings.files.size() == 1 ? std::max(settings.bytes, kPageBytes)
                                              : settings.chunk_bytes) {
    expects(!settings.files.empty(), "a volume has a file");
    expects(settings.chunk_bytes > 0 && settings.chunk_bytes % kPageBytes == 0,
            "chunks are whole pages");
    for (const std::string& path : settings.files) {
        members_.push_back(std::make_unique<Member>(path, settings.storage));
    }
}

void Volume::reserve() {
    for (const std::unique_ptr<Member>& member : members_) {
        member->file.reserve(bytes_of_file_);
    }
}

std::size_t Volume::file_bytes(const VolumeSettings& settings) {
    if (settings.files.size() == 1) {
        return round_up(settings.bytes, kPageBytes);
    }
    const std::size_t stripe_bytes = settings.chunk_bytes * settings.files.size();
    return round_up(settings.bytes, stripe_bytes) / settings.files.size();
}

std::vector<Volume::Part> Volume::parts_of(std::span<std::byte> memory, std::int64_t offset) const {
    const auto begin = static_cast<std::size_t>(offset);
    expects(offset >= 0 && begin + memory.size() <= bytes_, "a transfer lies within the volume");
    std::vector<Part> parts(members_.size());
    for (std::size_t done = 0; done < memory.size();) {
        const std::size_t chunk = (begin + done) / chunk_bytes_;
        const std::size_t within = (begin + done) % chunk_bytes_;
        const std::size_t count = std::min(chunk_bytes_ - within, memory.size() - done);
        Part& part = parts[chunk % members_.size()];
        if (part.pieces.empty()) {
            part.offset =
                static_cast<std::int64_t>(chunk / members_.size() * chunk_bytes_ + within);
        }
        part.pieces.push_back({memory.data() + done, count});
        done += count;
    }
    return parts;
}

Ticket Volume::read(std::span<std::byte> to, std::int64_t offset) {
    std::vector<Part> parts = parts_of(to, offset);
    Ticket all;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (!parts[i].pieces.empty()) {
            all.add(
                members_[i]->reads.submit([file = &members_[i]->file, part = std::move(parts[i])] {
                    file->read_pieces(part.pieces, part.offset);
                }));
        }
    }
    return all;
}

Ticket Volume::write(std::span<const std::byte> from, std::int64_t offset) {
    // The parts are of the type that reads use; writing leaves the memory as it is.
    std::vector<Part> parts = parts_of({const_cast<std::byte*>(from.data()), from.size()}, offset);
    Ticket all;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (!parts[i].pieces.empty()) {
            all.add(
                members_[i]->writes.submit([file = &members_[i]->file, part = std::move(parts[i])] {
                    file->write_pieces(part.pieces, part.offset);
                }));
        }
    }
    return all;
}

Ticket Volume::sync() {
    Ticket all;
    for (const std::unique_ptr<Member>& member : members_) {
        all.add(member->writes.submit([file = &member->file] { file->sync(); }));
    }
    return all;
}

std::string Volume::describe_place(std::int64_t offset) const {
    const std::size_t chunk = static_cast<std::size_t>(offset) / chunk_bytes_;
    const std::size_t within = static_cast<std::size_t>(offset) % chunk_bytes_;
    const std::string place = text("offset ", chunk / members_.size() * chunk_bytes_ + within,
                                   " of \"", members_[chunk % members_.size()]->file.path(), "\"");
    return members_.size() == 1 ? place
                                : text(place, " (striped over ", members_.size(), " files)");
}

}  // namespace nearstep::store
