// Writes a small checkpoint of four ranks, one of them without tiles, for the tests in this folder.
#pragma once

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/export.hpp"
#include "support/test.hpp"

namespace nearstep::checkpoint {

constexpr std::size_t kTiles = 7;
// The last tile holds 17 parameters and padding.
constexpr std::size_t kParameters = (kTiles - 1) * shard::kTileElems + 17;

// Rank 1 owns one tile, and rank 3 none.
std::vector<std::vector<shard::TileRange>> sample_ranges();

// Array 0, 1 or 2 of all tiles. One value is a NaN whose payload must survive.
std::vector<float> sample_values(std::uint64_t seed, std::uint64_t array);

// Tensors that cross tile borders, and a scalar. Some elements belong to no tensor.
std::vector<TensorPlace> sample_tensors();

Description sample_description(std::int64_t step);

std::vector<RankFileRecord> write_rank_files(const std::string& folder, std::int64_t step,
                                             int attempt, std::uint64_t seed);

// Returns the index's path.
std::string write_checkpoint(const std::string& folder, std::int64_t step, std::uint64_t seed);

// Exports as one rank.
void export_alone(const std::string& index, const std::string& out, const ExportSettings& settings,
                  const ModelTexts& texts = {});
void export_folder_alone(const std::string& index, const std::string& folder,
                         std::size_t shard_bytes);

class InFolder : public testing::Test {
protected:
    const std::string& root() const { return root_.path(); }
    const std::string& folder() const { return folder_; }

    // Names of the files in the checkpoint folder.
    std::vector<std::string> files() const;

private:
    ScratchFolder root_;
    std::string folder_ = root_.file("run/checkpoints");
};

struct State {
    std::vector<float> master;
    std::vector<float> moment1;
    std::vector<float> moment2;
};

State read_tiles(Reader& reader, shard::TileRange tiles);

// True if all bits are equal, including NaN payloads.
bool same_bits(std::span<const float> a, std::span<const float> b);

// Expects these tiles to have the values of `seed`.
void expect_values(Reader& reader, shard::TileRange tiles, std::uint64_t seed);

// Runs the project's Python with `words`, shell arguments; returns the exit status.
int run_python(const std::string& words);

// True if the project's Python has h5py.
bool has_h5py();

}  // namespace nearstep::checkpoint
