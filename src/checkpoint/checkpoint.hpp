// Checkpoints in HDF5: a file per rank, and an index whose virtual datasets show them as one.
// The format is described in docs/checkpoint.md.
#pragma once

#include "shard/partition.hpp"
#include "store/lineage.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

struct TensorPlace {
    std::string name;
    std::vector<std::int64_t> shape;  // row-major
    std::size_t offset = 0;           // first element in the parameter vector
};

// What a checkpoint says about itself besides the state.
struct Description {
    std::int64_t step = 0;        // steps done; also the data position
    std::int64_t generation = 0;  // updates done: step less the skipped ones
    double loss_scale = 1;
    std::int64_t good_steps = 0;  // since the loss scale last changed
    double norm = 0;              // of the gradient, that the next step is clipped by; 0: its own
    std::uint64_t seed = 0;
    std::string run;  // whose step this is, and the runs that it branched from
    std::vector<store::Branch> parents = {};
    std::string data = {};   // digest of the text, 16 hexadecimal digits; may be empty
    std::string dtype = {};  // of the parameters that the model computes with; may be empty
    std::string config;      // the run's settings as TOML
    std::string model;       // the settings that fix the parameter vector, one line
    std::string commit;
    std::string site;
    std::size_t parameters = 0;
    std::vector<TensorPlace> tensors;
};

// fp32 state of consecutive tiles: each span tiles x 65,536 elements.
struct StateView {
    std::span<const float> master;
    std::span<const float> moment1;
    std::span<const float> moment2;
};

// As StateView; an empty span is not read.
struct StateSpans {
    std::span<float> master;
    std::span<float> moment1;
    std::span<float> moment2;
};

// What the index keeps about a rank's file, so that damage is found before it is read.
struct RankFileRecord {
    std::uint64_t file_bytes = 0;
    std::uint64_t tiles_xxh3 = 0;  // digest of the file's tile checksums, those of residuals last
};

// Of HDF5's library: "1.10.8".
std::string hdf5_version();

// A number that no rank file of `step` in `folder` carries. A step may be written again after a
// resume: the new rank files lie beside those of a published checkpoint and never replace them.
// One rank calls it and tells the others, before any of them makes its file.
int next_attempt(const std::string& folder, std::int64_t step);

// Writes the file of one rank: its tile ranges, ascending, each tile once. One thread of a process
// at a time uses writers and readers.
class RankFileWriter {
public:
    // Makes `folder`, if it is not there, and in it step-<step>.attempt-<attempt>.rank-<rank>.h5.
    // Throws IoError if that cannot be written or exists.
    // `residual_tiles`: ascending, of error feedback; empty without it.
    static std::unique_ptr<RankFileWriter> make(
        const std::string& folder, std::int64_t step, int attempt, int rank,
        const std::vector<shard::TileRange>& ranges,
        const std::vector<std::size_t>& residual_tiles = {});
    virtual ~RankFileWriter() = default;
    // `tiles` lies within one of the ranges.
    virtual void write(shard::TileRange tiles, const StateView& state) = 0;
    // What error feedback kept of a tile, kTileElems values; each of residual_tiles once.
    virtual void write_residual(std::size_t tile, std::span<const float> residual) = 0;
    // When every tile is written: flushes, closes and syncs the file.
    virtual RankFileRecord finish() = 0;
};

// On one rank, when all rank files are finished: opens each of them and compares it with its
// record, writes the index under a temporary name, syncs it, renames it to `folder`/step-<step>.h5,
// and only then removes older checkpoints and what crashed runs left in the folder, and logs that.
// Files of later steps stay, and those that nearstep has not made, whatever their names.
// ranges[r]: what rank r wrote; together every tile once. Returns the index's path. Throws IoError
// if a rank file is not there as it was written: then nothing was published or removed.
std::string publish(const std::string& folder, const Description& description, int attempt,
                    const std::vector<std::vector<shard::TileRange>>& ranges,
                    const std::vector<RankFileRecord>& records);

// Paths of the indexes in `folder`, newest first. More than one if runs share the folder.
std::vector<std::string> find_all(const std::string& folder);

// What the name of an index says; 0 for any other name.
std::int64_t step_of_index(const std::string& path);

// Path of the newest index in `folder`; nullopt if there is none.
std::optional<std::string> find_newest(const std::string& folder);

// Reads a checkpoint, whatever the layout that wrote it. Throws ConfigError, with the file's name,
// if the index or a rank file is missing, truncated, damaged or of another format.
class Reader {
public:
    static std::unique_ptr<Reader> open(const std::string& index_path);
    virtual ~Reader() = default;
    virtual const Description& description() const = 0;
    // Reads and verifies the checksum of every tile read.
    virtual void read(shard::TileRange tiles, const StateSpans& state) = 0;
    // The ranks whose files hold a residual of the tile, ascending; none without error feedback.
    virtual std::vector<int> residual_ranks(std::size_t tile) const = 0;
    // Reads and verifies what one of them kept, kTileElems values.
    virtual void read_residual(int rank, std::size_t tile, std::span<float> residual) = 0;
};

}  // namespace nearstep::checkpoint
