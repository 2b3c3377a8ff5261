// Writes and verifies the line that guards a file. Used for indexes and exports.
#include "checkpoint/seal.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/rank_file.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <span>
#include <system_error>

namespace nearstep::checkpoint {

namespace {

std::string start_of(const Format& format) { return text(format.name, ", version "); }

// A file that may not be read counts as empty. A drive that fails is no damage.
std::ifstream open_to_read(const std::string& path) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file && errno != 0 && !is_mistake_in_path(errno)) {
        throw_path_error(text("The file ", path, " cannot be opened"), errno, "");
    }
    return file;
}

// Reads at most `most` bytes from the stream.
std::string take(std::istream& file, std::size_t most) {
    std::string bytes(most, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(most));
    if (file.bad()) {
        throw IoError("A file of a checkpoint cannot be read: check the disk, and try again.");
    }
    bytes.resize(static_cast<std::size_t>(file.gcount()));
    return bytes;
}

// The seal of a file; the stream stands at the first byte after the seal.
std::string seal_of(std::istream& file, const Format& format) {
    Xxh3Stream digest;
    for (std::string bytes = take(file, MiB); !bytes.empty(); bytes = take(file, MiB)) {
        digest.add(std::as_bytes(std::span(bytes)));
    }
    std::string seal = text(start_of(format), format.version, ", xxh3 of the bytes from ",
                            kSealBytes, " on: ", to_hex(digest.digest()), "\n");
    seal.resize(kSealBytes, '\0');
    return seal;
}

}  // namespace

void seal_file(const std::string& path, const Format& format) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(kSealBytes);
    const std::string seal = seal_of(file, format);
    file.clear();
    file.seekp(0);
    file.write(seal.data(), static_cast<std::streamsize>(seal.size()));
    if (!file.flush()) {
        refuse_write(path, errno);
    }
}

bool has_format(const std::string& path, const Format& format) {
    std::ifstream file = open_to_read(path);
    const std::string start = start_of(format);
    return file && take(file, start.size()) == start;
}

void verify_seal(const std::string& path, const Format& format) {
    std::ifstream file = open_to_read(path);
    const std::string seal = take(file, kSealBytes);
    const std::string start = start_of(format);
    if (!seal.starts_with(text(start, format.version, ","))) {
        const std::string version = seal.substr(std::min(start.size(), seal.size()), 8);
        throw ConfigError(text("The file ", path, " has version ",
                               version.substr(0, version.find(',')), " of the format ", format.name,
                               ", and this nearstep reads version ", format.version,
                               ". Use the nearstep that wrote it."));
    }
    if (seal != seal_of(file, format)) {
        report_damage(path, "its checksum does not match");
    }
}

}  // namespace nearstep::checkpoint
