// Writes and verifies the line that guards a file. Used for indexes and exports.
#include "checkpoint/seal.hpp"

#include "base/descriptor.hpp"
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/input_file.hpp"
#include "base/plain_file.hpp"
#include "base/units.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/rank_file.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace nearstep::checkpoint {

namespace {

std::string start_of(const Format& format) { return text(format.name, ", version "); }

// Returns nullopt if the path names no file, or one that may not be read. A drive that fails is no
// damage.
std::optional<InputFile> open_to_read(const std::string& path) {
    try {
        return InputFile(path, "The file", "name one that can be read.");
    } catch (const ConfigError&) {
        return std::nullopt;
    }
}

// Reads at most `most` bytes from `offset` on.
std::string take(const InputFile& file, std::size_t offset, std::size_t most) {
    std::string bytes(std::min(most, file.size() - std::min(offset, file.size())), '\0');
    file.read(offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
}

std::string seal_with(std::uint64_t digest, const Format& format) {
    std::string seal = text(start_of(format), format.version, ", xxh3 of the bytes from ",
                            kSealBytes, " on", format.but, ": ", to_hex(digest), "\n");
    seal.resize(kSealBytes, '\0');
    return seal;
}

std::string seal_of(const InputFile& file, const Format& format, FileRanges left_out) {
    left_out.push_back({.begin = file.size(), .end = file.size()});
    std::ranges::sort(left_out, {}, &FileRange::begin);
    Xxh3Stream digest;
    std::size_t at = kSealBytes;
    for (const FileRange& range : left_out) {
        while (at < range.begin) {
            const std::string bytes = take(file, at, std::min<std::size_t>(MiB, range.begin - at));
            digest.add(std::as_bytes(std::span(bytes)));
            at += bytes.size();
        }
        at = std::max<std::size_t>(at, range.end);
    }
    return seal_with(digest.digest(), format);
}

bool starts_with(const std::string& path, const std::string& start) {
    const std::optional<InputFile> file = open_to_read(path);
    return file && take(*file, 0, start.size()) == start;
}

}  // namespace

void seal(std::span<std::byte> file, const Format& format) {
    expects(file.size() >= kSealBytes, "a file has room for its seal");
    const std::string seal = seal_with(xxh3(file.subspan(kSealBytes)), format);
    std::ranges::copy(std::as_bytes(std::span(seal)), file.begin());
}

void seal_file(const std::string& path, const Format& format, FileRanges left_out) {
    const std::string seal =
        seal_of(InputFile(path, "The file", "write it again."), format, std::move(left_out));
    const Descriptor file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file || write_all(file, std::as_bytes(std::span(seal))) != 0) {
        refuse_write(path, errno);
    }
}

bool has_format(const std::string& path, const Format& format) {
    return starts_with(path, start_of(format));
}

bool has_version(const std::string& path, const Format& format) {
    return starts_with(path, text(start_of(format), format.version, ","));
}

void verify_seal(const std::string& path, const Format& format, FileRanges left_out) {
    const InputFile file(path, "The file", "name one that can be read.");
    const std::string seal = take(file, 0, kSealBytes);
    const std::string start = start_of(format);
    if (!seal.starts_with(text(start, format.version, ","))) {
        const std::string version = seal.substr(std::min(start.size(), seal.size()), 8);
        throw ConfigError(text("The file ", path, " has version ",
                               version.substr(0, version.find(',')), " of the format ", format.name,
                               ", and this nearstep reads version ", format.version,
                               ". Use the nearstep that wrote it."));
    }
    if (seal != seal_of(file, format, std::move(left_out))) {
        report_damage(path, "its checksum does not match");
    }
}

}  // namespace nearstep::checkpoint
