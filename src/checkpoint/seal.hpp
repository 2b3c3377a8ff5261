// The line at the start of an index or an export: the file's format, and a digest of all the rest.
//
// The line fills HDF5's user block, which other HDF5 readers skip.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace nearstep::checkpoint {

constexpr std::size_t kSealBytes = 512;  // the smallest user block

struct Format {
    const char* name;
    int version;
};

constexpr Format kIndexFormat = {.name = "nearstep checkpoint", .version = 1};
constexpr Format kExportFormat = {.name = "nearstep export", .version = 1};

// Writes the seal into the first kSealBytes of a file's bytes, which were left free for it.
void seal(std::span<std::byte> file, const Format& format);

// Writes the seal into the first kSealBytes of a closed file, which were left free for it.
void seal_file(const std::string& path, const Format& format);

// True if the file starts with this format's name, in any version.
bool has_format(const std::string& path, const Format& format);

// Throws ConfigError if the file has another version or is damaged. It must have the format.
void verify_seal(const std::string& path, const Format& format);

}  // namespace nearstep::checkpoint
