// Checkpoints in HDF5: one file per rank, and an index whose virtual datasets present them as one.
// docs/formats/checkpoint.md describes the format.
#pragma once

#include "shard/partition.hpp"
#include "store/lineage.hpp"
#include "store/manifest.hpp"
#include "store/program_state.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

struct TensorPlace {
    std::string name;
    std::vector<std::int64_t> shape;  // row-major
    std::size_t offset = 0;           // first element in the parameter vector
};

// A checkpoint's metadata: its step, the run that made it, and what that trained.
struct Description : store::Commit, store::Lineage {
    std::uint64_t seed = 0;
    std::string data = {};     // digest of the text, 16 hex digits; may be empty
    std::string dtype = {};    // of the model's parameters; may be empty
    std::string threads = {};  // see store::Manifest::threads; may be empty
    std::string config;        // the run's settings as TOML
    std::string model;         // the settings that determine the parameter vector, one line
    std::string commit;
    std::string site;
    std::size_t parameters = 0;
    std::vector<TensorPlace> tensors;
    // The record of what the program of each rank that computes kept in a file of its own; empty:
    // unknown.
    std::vector<store::ProgramRecord> programs = {};
};

// fp32 state of consecutive tiles; each span has tiles x 65,536 elements.
struct StateView {
    std::span<const float> master;
    std::span<const float> moment1;
    std::span<const float> moment2;
};

// Like StateView, for reading. An empty span is not read.
struct StateSpans {
    std::span<float> master;
    std::span<float> moment1;
    std::span<float> moment2;
};

// Facts that the index records about a rank file, to find damage before the file is used.
struct RankFileRecord {
    std::uint64_t file_bytes = 0;
    std::uint64_t tiles_xxh3 = 0;  // digest of the file's tile checksums, then residual checksums
};

// Version of the HDF5 library: "1.10.8".
std::string hdf5_version();

// An attempt number that no rank file of `step` in `folder` has. A step may be written again after
// a resume, and new rank files must not replace those of a published checkpoint. One rank calls
// this and tells the others before any of them creates its file.
int next_attempt(const std::string& folder, std::int64_t step);

// Writes the file of one rank: its tile ranges, ascending, each tile once. Only one thread of a
// process may use writers and readers at a time.
class RankFileWriter {
public:
    // Creates `folder` if it is missing, and step-<step>.attempt-<attempt>.rank-<rank>.h5 in it.
    // Throws ConfigError if the folder may not be created, IoError if the file cannot be written or
    // exists. `residual_tiles`: the tiles with an error-feedback residual, ascending.
    static std::unique_ptr<RankFileWriter> make(
        const std::string& folder, std::int64_t step, int attempt, int rank,
        const std::vector<shard::TileRange>& ranges,
        const std::vector<std::size_t>& residual_tiles = {});
    virtual ~RankFileWriter() = default;
    // Writes the state of these tiles, which must lie within one of the ranges. Throws IoError if
    // the file cannot be written, as the next two calls do.
    virtual void write(shard::TileRange tiles, const StateView& state) = 0;
    // Writes a tile's residual, kTileElems values. Call it once for each of residual_tiles.
    virtual void write_residual(std::size_t tile, std::span<const float> residual) = 0;
    // Call when every tile is written. Flushes, closes and syncs the file, and reads it back.
    virtual RankFileRecord finish() = 0;
};

// Writes what a rank's program kept, for publish(), into a file that then survives a power cut.
// Throws IoError.
store::ProgramRecord write_program(const std::string& folder, std::int64_t step, int attempt,
                                   int rank, const std::string& run,
                                   std::span<const std::byte> bytes);

// Publishes a checkpoint; called on one rank when all rank files are finished. Compares each file
// with its record, writes the index under a temporary name, syncs it and renames it to
// `folder`/step-<step>.h5. The folder is this run's: see claim_folder(). Reads the index back, and
// writes to `record_place`, unless it is empty, where it is (see newest.hpp). Then removes older
// checkpoints and leftovers of crashed runs and logs that. Keeps files of later steps and files
// that nearstep did not write. ranges[r]: what rank r wrote; together the ranks wrote every tile
// once. Returns the index's path. Throws IoError if a rank file is missing or differs, or the index
// cannot be written; then nothing was published or removed.
std::string publish(const std::string& folder, const Description& description, int attempt,
                    const std::vector<std::vector<shard::TileRange>>& ranges,
                    const std::vector<RankFileRecord>& records,
                    const std::string& record_place = {});

// Paths of the indexes in `folder` and in the folders of runs in it, newest first. There are
// several if runs share the folder.
std::vector<std::string> find_all(const std::string& folder);

// The step in an index's file name; 0 for any other name.
std::int64_t step_of_index(const std::string& path);

// Reads a checkpoint, whatever layout wrote it. Throws ConfigError with the file's name if the
// index or a rank file is missing, truncated, damaged or in another format.
class Reader {
public:
    static std::unique_ptr<Reader> open(const std::string& index_path);
    virtual ~Reader() = default;
    virtual const Description& description() const = 0;
    // Returns what the program of that rank kept, or that of rank 0 if the index has none of that
    // rank. Without bytes, nothing was kept.
    virtual store::ProgramState program(int rank) const = 0;
    // Reads tiles and verifies their checksums.
    virtual void read(shard::TileRange tiles, const StateSpans& state) = 0;
    // The ranks whose files have a residual for the tile, ascending; empty without error feedback.
    virtual std::vector<int> residual_ranks(std::size_t tile) const = 0;
    // Reads and verifies the residual of one of these ranks, kTileElems values.
    virtual void read_residual(int rank, std::size_t tile, std::span<float> residual) = 0;
};

}  // namespace nearstep::checkpoint
