// Reads the file of one rank: rows of tiles, each with checksums.
#pragma once

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/h5_reader.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

constexpr const char* kRankFileFormat = "nearstep rank file";
constexpr std::int64_t kRankFileVersion = 1;

// Number of state arrays; a tile has one checksum for each.
constexpr std::size_t kArrays = 3;

// Throws ConfigError which says that `path` is damaged, with `reason`.
[[noreturn]] void report_damage(const std::string& path, const std::string& reason);

// Runs `read`. An Hdf5Error in it becomes report_damage()'s ConfigError, or an IoError if the disk
// failed.
void report_damage_in(const std::string& path, const std::function<void()>& read);

class RankFile {
public:
    // Throws ConfigError if the file is missing, or does not match `record` and `ranges`.
    RankFile(std::string path, const RankFileRecord& record,
             const std::vector<shard::TileRange>& ranges);

    // Reads consecutive rows, starting at `row`; `tiles` are their tile numbers, for messages.
    // Throws ConfigError if a checksum does not match.
    void read(std::size_t row, shard::TileRange tiles, const StateSpans& state);

    // The tiles with an error-feedback residual, ascending; empty without error feedback.
    const std::vector<std::uint64_t>& residual_tiles() const { return residual_tiles_; }
    // The tile must have a residual. Throws ConfigError if its checksum does not match.
    void read_residual(std::size_t tile, std::span<float> residual);

    // Reads the whole file. Throws ConfigError if a checksum does not match.
    void verify();

private:
    void open_residual();
    // A dataset with this many rows of kTileElems values.
    h5::Array open_rows(const char* name, std::size_t rows);

    // Reads rows of a dataset with rows of kTileElems values.
    void read_rows(const h5::Array& dataset, std::size_t row, std::span<float> values) const;

    std::string path_;
    std::unique_ptr<h5::StoredFile> file_;
    std::vector<h5::Array> arrays_;
    std::vector<std::uint64_t> xxh3_;  // kArrays per row
    std::vector<std::uint64_t> residual_tiles_;
    std::vector<std::uint64_t> residual_xxh3_;
    h5::Array residual_;
};

}  // namespace nearstep::checkpoint
