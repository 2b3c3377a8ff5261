// Writes and reads the checkpoint file of one rank. Used by the engine and by checkpoint.cpp.
#include "checkpoint/rank_file.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/h5.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

namespace nearstep::checkpoint {

namespace {

using shard::kTileElems;
using shard::TileRange;

constexpr std::array<const char*, kArrays> kArrayNames = {"master", "moment1", "moment2"};

h5::Part rows_of(std::size_t row, std::size_t rows) {
    return {.start = {row, 0}, .count = {rows, kTileElems}};
}

std::uint64_t digest_of(std::span<const float> values) { return xxh3(std::as_bytes(values)); }

// Tile numbers in row order.
std::vector<std::uint64_t> tiles_in(const std::vector<TileRange>& ranges) {
    std::vector<std::uint64_t> tiles;
    for (const TileRange& range : ranges) {
        for (std::size_t tile = range.begin; tile < range.end; ++tile) {
            tiles.push_back(tile);
        }
    }
    return tiles;
}

constexpr const char* kResidual = "residual";
constexpr const char* kResidualTiles = "residual_tiles";
constexpr const char* kResidualXxh3 = "residual_xxh3";

// Digest of a file's tile checksums, then of its residuals' checksums and tile numbers.
std::uint64_t digest_of_tables(std::vector<std::uint64_t> of_tiles,
                               const std::vector<std::uint64_t>& of_residuals,
                               const std::vector<std::uint64_t>& residual_tiles) {
    of_tiles.insert(of_tiles.end(), of_residuals.begin(), of_residuals.end());
    of_tiles.insert(of_tiles.end(), residual_tiles.begin(), residual_tiles.end());
    return xxh3(std::as_bytes(std::span<const std::uint64_t>(of_tiles)));
}

class RankWriter final : public RankFileWriter {
public:
    RankWriter(std::string folder, std::string path, const std::vector<TileRange>& ranges,
               const std::vector<std::size_t>& residual_tiles)
        : folder_(std::move(folder)),
          path_(std::move(path)),
          ranges_(ranges),
          tiles_(tiles_in(ranges)),
          residual_tiles_(residual_tiles.begin(), residual_tiles.end()) {
        expects(
            std::ranges::is_sorted(tiles_) && std::ranges::adjacent_find(tiles_) == tiles_.end(),
            "a rank's tile ranges ascend and do not overlap");
        xxh3_.resize(tiles_.size() * kArrays);
        is_written_.resize(tiles_.size(), false);
        residual_xxh3_.resize(residual_tiles_.size());
        is_residual_written_.resize(residual_tiles_.size(), false);
        report([&] { file_ = h5::create_file(path_, 0, kCheckpointMode); });
    }

    RankWriter(const RankWriter&) = delete;
    RankWriter& operator=(const RankWriter&) = delete;
    // A file that was not finished is worth nothing, and may fill the disk.
    ~RankWriter() override {
        if (!is_finished_) {
            ::unlink(path_.c_str());
        }
    }

    // Runs `write`; its IoError names the file and the room that it needs.
    void report(const std::function<void()>& write) const {
        const std::size_t rows = tiles_.size() * kArrays + residual_tiles_.size();
        as_fault_of_run([&] { report_unwritten(path_, rows * kTileElems * sizeof(float), write); });
    }

    void describe(std::int64_t step, int attempt, int rank) {
        h5::write_text(file_.get(), "format", kRankFileFormat);
        h5::write_number(file_.get(), "format_version", kRankFileVersion);
        h5::write_number(file_.get(), "step", step);
        h5::write_number<std::int64_t>(file_.get(), "attempt", attempt);
        h5::write_number<std::int64_t>(file_.get(), "rank", rank);
        const std::vector<hsize_t> extent = {tiles_.size(), kTileElems};
        for (const char* name : kArrayNames) {
            arrays_.push_back(h5::make_dataset(file_.get(), name, H5T_IEEE_F32LE, extent));
        }
        if (!residual_tiles_.empty()) {
            const std::vector<hsize_t> rows = {residual_tiles_.size(), kTileElems};
            residual_ = h5::make_dataset(file_.get(), kResidual, H5T_IEEE_F32LE, rows);
        }
        // After a crash, the file's attributes tell that it is a rank file.
        h5::check(H5Fflush(file_.get(), H5F_SCOPE_LOCAL), text("write ", path_));
    }

    void write(TileRange tiles, const StateView& state) override {
        expects(tiles.begin < tiles.end, "at least one tile is written");
        const auto first = std::ranges::lower_bound(tiles_, tiles.begin);
        const auto row = static_cast<std::size_t>(first - tiles_.begin());
        expects(row + tiles.size() <= tiles_.size() && tiles_[row] == tiles.begin &&
                    tiles_[row + tiles.size() - 1] == tiles.end - 1,
                "the tiles lie within one of the rank's ranges");
        const std::array<std::span<const float>, kArrays> arrays = {state.master, state.moment1,
                                                                    state.moment2};
        for (std::size_t a = 0; a < kArrays; ++a) {
            expects(arrays[a].size() == tiles.size() * kTileElems,
                    "an array of state holds the tiles written");
            report([&] {
                h5::write_part(arrays_[a], rows_of(row, tiles.size()), H5T_NATIVE_FLOAT,
                               arrays[a].data());
            });
        }
        for (std::size_t i = 0; i < tiles.size(); ++i) {
            expects(!is_written_[row + i], "a tile is written once");
            is_written_[row + i] = true;
            for (std::size_t a = 0; a < kArrays; ++a) {
                xxh3_[(row + i) * kArrays + a] =
                    digest_of(arrays[a].subspan(i * kTileElems, kTileElems));
            }
        }
    }

    void write_residual(std::size_t tile, std::span<const float> residual) override {
        const auto found = std::ranges::lower_bound(residual_tiles_, tile);
        expects(found != residual_tiles_.end() && *found == tile && residual.size() == kTileElems,
                "a residual is that of one of the rank's tiles");
        const auto row = static_cast<std::size_t>(found - residual_tiles_.begin());
        report(
            [&] { h5::write_part(residual_, rows_of(row, 1), H5T_NATIVE_FLOAT, residual.data()); });
        residual_xxh3_[row] = digest_of(residual);
        is_residual_written_[row] = true;
    }

    RankFileRecord finish() override {
        expects(static_cast<bool>(file_), "a rank file is finished once");
        expects(std::ranges::find(is_written_, false) == is_written_.end(),
                "every tile of the rank was written");
        expects(std::ranges::find(is_residual_written_, false) == is_residual_written_.end(),
                "every residual of the rank was written");
        report([&] {
            write_tables();
            sync_file(path_);
            sync_folder(folder_);
        });
        const RankFileRecord record{
            .file_bytes = std::filesystem::file_size(path_),
            .tiles_xxh3 = digest_of_tables(xxh3_, residual_xxh3_, residual_tiles_)};
        read_back(record);
        is_finished_ = true;
        return record;
    }

private:
    // A write that the drive confirmed may be lost or changed all the same.
    void read_back(const RankFileRecord& record) const {
        try {
            drop_cached(path_);
            RankFile written(path_, record, ranges_);
            written.verify();
        } catch (const ConfigError& fault) {
            refuse_read_back(path_, fault.what());
        }
    }

    void write_tables() {
        h5::write_numbers<std::uint64_t>(file_.get(), "tiles", std::vector<hsize_t>{tiles_.size()},
                                         tiles_);
        h5::write_numbers<std::uint64_t>(file_.get(), "tile_xxh3",
                                         std::vector<hsize_t>{tiles_.size(), kArrays}, xxh3_);
        if (!residual_tiles_.empty()) {
            const std::vector<hsize_t> rows = {residual_tiles_.size()};
            h5::write_numbers<std::uint64_t>(file_.get(), kResidualTiles, rows, residual_tiles_);
            h5::write_numbers<std::uint64_t>(file_.get(), kResidualXxh3, rows, residual_xxh3_);
        }
        for (h5::Dataset& array : arrays_) {
            h5::finish(std::move(array), H5Dclose, text("write ", path_));
        }
        if (residual_) {
            h5::finish(std::move(residual_), H5Dclose, text("write ", path_));
        }
        h5::close_file(std::move(file_), path_);
    }

    std::string folder_;
    std::string path_;
    std::vector<TileRange> ranges_;
    std::vector<std::uint64_t> tiles_;
    std::vector<std::uint64_t> xxh3_;
    std::vector<bool> is_written_;
    std::vector<std::uint64_t> residual_tiles_;
    std::vector<std::uint64_t> residual_xxh3_;
    std::vector<bool> is_residual_written_;
    h5::File file_;
    std::vector<h5::Dataset> arrays_;
    h5::Dataset residual_;
    bool is_finished_ = false;
};

}  // namespace

std::unique_ptr<RankFileWriter> RankFileWriter::make(
    const std::string& folder, std::int64_t step, int attempt, int rank,
    const std::vector<TileRange>& ranges, const std::vector<std::size_t>& residual_tiles) {
    make_folder(folder);
    auto writer = std::make_unique<RankWriter>(
        folder, text(folder, "/", rank_file_name(step, attempt, rank)), ranges, residual_tiles);
    writer->report([&] { writer->describe(step, attempt, rank); });
    return writer;
}

void report_damage(const std::string& path, const std::string& reason) {
    throw ConfigError(
        text("The file ", path, " is damaged: ", reason,
             ". Restore it from a copy, or delete its checkpoint and resume from another one."));
}

void report_damage_in(const std::string& path, const std::function<void()>& read) {
    try {
        read();
    } catch (const Hdf5Error& error) {
        if (error.code() != 0 && !is_mistake_in_path(error.code())) {
            throw_path_error(text("Cannot read ", path), error.code(), "");
        }
        report_damage(path, reason_of(error));
    }
}

RankFile::RankFile(std::string path, const RankFileRecord& record,
                   const std::vector<TileRange>& ranges)
    : path_(std::move(path)) {
    report_damage_in(path_, [&] {
        std::error_code error;
        const std::uintmax_t bytes = std::filesystem::file_size(path_, error);
        if (!error && bytes != record.file_bytes) {
            report_damage(path_,
                          text("it has ", bytes, " bytes, and its index says ", record.file_bytes));
        }
        file_ = std::make_unique<h5::StoredFile>(path_);
        xxh3_ = h5::read_numbers<std::uint64_t>(*file_, "tile_xxh3");
        open_residual();
        // Version 0.2.0 left the numbers of the residuals' tiles out.
        if (digest_of_tables(xxh3_, residual_xxh3_, residual_tiles_) != record.tiles_xxh3 &&
            digest_of_tables(xxh3_, residual_xxh3_, {}) != record.tiles_xxh3) {
            report_damage(path_, "its table of checksums is not the one that its index recorded");
        }
        const std::vector<std::uint64_t> tiles = h5::read_numbers<std::uint64_t>(*file_, "tiles");
        if (tiles != tiles_in(ranges) || xxh3_.size() != tiles.size() * kArrays) {
            report_damage(path_, "it holds other tiles than its index says");
        }
        for (const char* name : kArrayNames) {
            arrays_.push_back(open_rows(name, tiles.size()));
        }
    });
}

h5::Array RankFile::open_rows(const char* name, std::size_t rows) {
    h5::Array found = file_->dataset(name);
    if (found.kind != h5::Kind::real || found.elem_bytes != sizeof(float) ||
        found.extent != std::vector<std::uint64_t>{rows, kTileElems}) {
        report_damage(path_, text("its dataset ", name, " has another shape than its tiles need"));
    }
    return found;
}

void RankFile::open_residual() {
    if (!file_->has(kResidual)) {
        return;
    }
    residual_tiles_ = h5::read_numbers<std::uint64_t>(*file_, kResidualTiles);
    residual_xxh3_ = h5::read_numbers<std::uint64_t>(*file_, kResidualXxh3);
    residual_ = open_rows(kResidual, residual_tiles_.size());
    if (residual_xxh3_.size() != residual_tiles_.size() ||
        !std::ranges::is_sorted(residual_tiles_)) {
        report_damage(path_, "its residuals have another shape than their tiles need");
    }
}

void RankFile::read_rows(const h5::Array& dataset, std::size_t row, std::span<float> values) const {
    file_->read(dataset, row * kTileElems, std::as_writable_bytes(values));
}

void RankFile::read_residual(std::size_t tile, std::span<float> residual) {
    const auto found = std::ranges::lower_bound(residual_tiles_, tile);
    expects(found != residual_tiles_.end() && *found == tile, "the tile has a residual");
    const auto row = static_cast<std::size_t>(found - residual_tiles_.begin());
    read_rows(residual_, row, residual);
    if (digest_of(residual) != residual_xxh3_[row]) {
        report_damage(path_,
                      text("the checksum of the residual of tile ", tile, " does not match"));
    }
}

void RankFile::read(std::size_t row, TileRange tiles, const StateSpans& state) {
    const std::array<std::span<float>, kArrays> arrays = {state.master, state.moment1,
                                                          state.moment2};
    for (std::size_t a = 0; a < kArrays; ++a) {
        if (arrays[a].empty()) {
            continue;
        }
        read_rows(arrays_[a], row, arrays[a]);
        for (std::size_t i = 0; i < tiles.size(); ++i) {
            if (digest_of(arrays[a].subspan(i * kTileElems, kTileElems)) !=
                xxh3_[(row + i) * kArrays + a]) {
                report_damage(path_, text("the checksum of tile ", tiles.begin + i, " of ",
                                          kArrayNames[a], " does not match"));
            }
        }
    }
}

void RankFile::verify() {
    std::vector<float> values(kTileElems);
    const std::span<float> none;
    const std::size_t rows = xxh3_.size() / kArrays;
    for (std::size_t array = 0; array < kArrays; ++array) {  // in the order of the file
        for (std::size_t row = 0; row < rows; ++row) {
            read(row, {.begin = row, .end = row + 1},
                 {.master = array == 0 ? std::span(values) : none,
                  .moment1 = array == 1 ? std::span(values) : none,
                  .moment2 = array == 2 ? std::span(values) : none});
        }
    }
    for (const std::uint64_t tile : residual_tiles_) {
        read_residual(tile, values);
    }
}

}  // namespace nearstep::checkpoint
