// The file of one rank as it is read: rows of tiles, each verified.
#pragma once

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/h5.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

constexpr const char* kRankFileFormat = "nearstep rank file";
constexpr std::int64_t kRankFileVersion = 1;

// The arrays of state, in the order of a tile's checksums.
constexpr std::size_t kArrays = 3;

// Throws ConfigError: `path` is damaged for `reason`.
[[noreturn]] void report_damage(const std::string& path, const std::string& reason);

// Runs `read`; a failure of HDF5 in it becomes the ConfigError of report_damage(), or an IoError
// where the disk failed.
void report_damage_in(const std::string& path, const std::function<void()>& read);

class RankFile {
public:
    // Throws ConfigError if the file is missing, or is not the one of `record` with the tiles of
    // `ranges`.
    RankFile(std::string path, const RankFileRecord& record,
             const std::vector<shard::TileRange>& ranges);

    // Reads tiles that follow each other from row `row` on; `tiles` names them in messages. Throws
    // ConfigError if a tile's checksum does not match.
    void read(std::size_t row, shard::TileRange tiles, const StateSpans& state);

    // Of error feedback, ascending; empty without it.
    const std::vector<std::uint64_t>& residual_tiles() const { return residual_tiles_; }
    // Throws ConfigError if the checksum does not match. The tile has a residual.
    void read_residual(std::size_t tile, std::span<float> residual);

private:
    void open_residual();

    std::string path_;
    h5::File file_;
    std::vector<h5::Dataset> arrays_;
    std::vector<std::uint64_t> xxh3_;  // kArrays per row
    std::vector<std::uint64_t> residual_tiles_;
    std::vector<std::uint64_t> residual_xxh3_;
    h5::Dataset residual_;
};

}  // namespace nearstep::checkpoint
