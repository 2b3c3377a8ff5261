// The line at the start of an index or an export: what the file is, and a digest of all the rest.
//
// It is verified before HDF5 sees the file, because the library can crash on a damaged one. It
// fills HDF5's user block, which other readers of the format skip.
#pragma once

#include <cstddef>
#include <string>

namespace nearstep::checkpoint {

constexpr std::size_t kSealBytes = 512;  // the smallest user block

struct Format {
    const char* name;
    int version;
};

constexpr Format kIndexFormat = {.name = "nearstep checkpoint", .version = 1};
constexpr Format kExportFormat = {.name = "nearstep export", .version = 1};

// Writes the seal into the kSealBytes that a closed file has left at its start.
void seal_file(const std::string& path, const Format& format);

// True if the file starts as one of this format does, whatever its version.
bool has_format(const std::string& path, const Format& format);

// Throws ConfigError if the file, which has the format, has another version or is damaged.
void verify_seal(const std::string& path, const Format& format);

}  // namespace nearstep::checkpoint
