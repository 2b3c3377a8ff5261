// The line at the start of an index or an export: the file's format, and a digest of the rest.
//
// The line fills HDF5's user block, which other HDF5 readers skip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

constexpr std::size_t kSealBytes = 512;  // the smallest user block

struct Format {
    const char* name;
    int version;
    const char* but = "";  // what the digest leaves out, after "the bytes from 512 on"
};

constexpr Format kIndexFormat = {.name = "nearstep checkpoint", .version = 1};
// The digest covers all but the elements of datasets, which have digests of their own. So ranks
// can write the elements, and read them back, at once.
constexpr Format kExportFormat = {
    .name = "nearstep export", .version = 2, .but = " but the elements of datasets"};
// Exports of version 0.2.0: the digest covers all bytes.
constexpr Format kOldExportFormat = {.name = "nearstep export", .version = 1};

// Bytes of a file from `begin` to `end`.
struct FileRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};
using FileRanges = std::vector<FileRange>;

// Writes the seal into the first kSealBytes of a file's bytes, which were left free for it.
void seal(std::span<std::byte> file, const Format& format);

// Writes the seal into the first kSealBytes of a closed file, which were left free for it. The
// digest leaves out the bytes in `left_out`, as the format says.
void seal_file(const std::string& path, const Format& format, FileRanges left_out = {});

// True if the file starts with this format's name, in any version.
bool has_format(const std::string& path, const Format& format);
// True if the file starts with this format's name and version.
bool has_version(const std::string& path, const Format& format);

// Throws ConfigError if the file has another version or is damaged. It must have the format.
void verify_seal(const std::string& path, const Format& format, FileRanges left_out = {});

}  // namespace nearstep::checkpoint
