// Publishes, finds and reads checkpoints. Used by the engine and by exports.
#include "checkpoint/checkpoint.hpp"

#include "base/error.hpp"
#include "base/input_file.hpp"
#include "base/log.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/h5.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/newest.hpp"
#include "checkpoint/owner.hpp"
#include "checkpoint/rank_file.hpp"
#include "store/storage_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <system_error>

namespace nearstep::checkpoint {

namespace {

namespace fs = std::filesystem;
using shard::kTileElems;
using shard::TileRange;

// A reader keeps at most this many rank files open, because descriptors are limited.
constexpr std::size_t kOpenFiles = 64;

// Consecutive tiles in one rank's file, starting at row `row`.
struct Extent {
    TileRange tiles;
    std::size_t rank = 0;
    std::size_t row = 0;
};

// All extents, sorted by tile.
std::vector<Extent> extents_of(const std::vector<std::vector<TileRange>>& ranges) {
    std::vector<Extent> extents;
    for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
        std::size_t row = 0;
        for (const TileRange& range : ranges[rank]) {
            if (range.size() > 0) {
                extents.push_back({.tiles = range, .rank = rank, .row = row});
            }
            row += range.size();
        }
    }
    std::ranges::sort(extents, {}, [](const Extent& e) { return e.tiles.begin; });
    return extents;
}

void remove_file(const std::string& path) {
    std::error_code error;
    fs::remove(path, error);
    if (error) {
        throw IoError(text("Cannot remove the old checkpoint file ", path, ": ", error.message(),
                           ". Check the folder's permissions."));
    }
}

// Removes the `files` that nearstep wrote and logs them. Returns true if it removed any.
bool remove_ours(const std::string& folder, const std::vector<FileName>& files) {
    std::string removed;
    for (const FileName& file : files) {
        const std::string path = text(folder, "/", file.name);
        if (is_made_here(folder, file)) {
            remove_file(path);
            removed += (removed.empty() ? "" : " ") + file.name;
        } else {
            log_event("not_removed", {{"file", path}, {"reason", "nearstep has not made it"}});
        }
    }
    if (!removed.empty()) {
        log_event("old_checkpoint_removed", {{"folder", folder}, {"files", removed}});
    }
    return !removed.empty();
}

// Removes indexes before the rank files that they name, so that no index names missing files.
void remove_older(const std::string& folder, const Index& index) {
    const std::int64_t step = index.description.step;
    std::set<std::string> kept(index.files.begin(), index.files.end());
    for (std::size_t rank = 0; rank < index.description.programs.size(); ++rank) {
        kept.insert(program_file_of(index, rank));
    }
    kept.insert(extra_file_name(step));
    std::vector<FileName> indexes;
    std::vector<FileName> others;
    for (const FileName& file : list_folder(folder)) {
        if (file.kind == FileKind::index && file.step < step) {
            indexes.push_back(file);
        } else if (file.kind != FileKind::index && file.step <= step &&
                   kept.count(file.name) == 0) {
            others.push_back(file);
        }
    }
    if (remove_ours(folder, indexes)) {
        sync_folder(folder);
    }
    remove_ours(folder, others);
}

// Throws IoError unless this rank can read every file that the index names.
void expect_rank_files(const std::string& folder, const Index& index) {
    list_folder(folder);  // lets a network file system find the files of other hosts
    for (std::size_t rank = 0; rank < index.files.size(); ++rank) {
        try {
            const RankFile file(text(folder, "/", index.files[rank]), index.records[rank],
                                index.ranges[rank]);
        } catch (const ConfigError& fault) {
            throw IoError(text("The checkpoint of step ", index.description.step,
                               " is not published, and the one before stays: rank ", rank,
                               "'s file is not seen as it was written. ", fault.what()));
        }
    }
    for (std::size_t rank = 0; rank < index.description.programs.size(); ++rank) {
        const std::string path = text(folder, "/", program_file_of(index, rank));
        const store::ProgramRecord& record = index.description.programs[rank];
        drop_cached(path);
        if (record.bytes > 0 && !store::read_program_state({&path, 1}, record)) {
            throw IoError(text("The checkpoint of step ", index.description.step,
                               " is not published, and the one before stays: ", path,
                               " is not seen as it was written."));
        }
    }
}

// Throws IoError unless the synced file holds these bytes.
void expect_read_back(const std::string& path, std::span<const std::byte> bytes) {
    drop_cached(path);
    bool is_same = false;
    try {
        const std::string read = InputFile(path, "The file", "write it again.").read_all();
        is_same = std::ranges::equal(std::as_bytes(std::span(read)), bytes);
    } catch (const ConfigError&) {
        is_same = false;
    }
    if (!is_same) {
        refuse_read_back(path);
    }
}

class IndexReader final : public Reader {
public:
    explicit IndexReader(const std::string& path)
        : folder_(store::folder_of(path)),
          index_(read_index(path)),
          extents_(extents_of(index_.ranges)) {
        files_.resize(index_.files.size());
        for (std::size_t rank = 0; rank < files_.size(); ++rank) {
            for (const std::uint64_t tile : file_of(rank).residual_tiles()) {
                residual_ranks_[tile].push_back(static_cast<int>(rank));
            }
        }
    }

    const Description& description() const override { return index_.description; }

    store::ProgramState program(int rank) const override {
        const std::vector<store::ProgramRecord>& programs = index_.description.programs;
        if (programs.empty()) {
            return old_program();
        }
        const std::size_t of =
            static_cast<std::size_t>(rank) < programs.size() ? static_cast<std::size_t>(rank) : 0;
        if (programs[of].bytes == 0) {
            return {};
        }
        const std::string path = text(folder_, "/", program_file_of(index_, of));
        std::optional<store::ProgramState> kept =
            store::read_program_state({&path, 1}, programs[of]);
        if (!kept) {
            throw ConfigError(text("The buffers that were kept with the step cannot be read (",
                                   path,
                                   " is missing, damaged or not what the checkpoint names): "
                                   "bring the file back, or go on from another checkpoint."));
        }
        return std::move(*kept);
    }

    void read(TileRange tiles, const StateSpans& state) override {
        expects(
            tiles.begin <= tiles.end && tiles.end <= shard::tiles_of(index_.description.parameters),
            "the tiles read are in the checkpoint");
        for (const std::size_t elems :
             {state.master.size(), state.moment1.size(), state.moment2.size()}) {
            expects(elems == 0 || elems == tiles.size() * kTileElems,
                    "a span holds the tiles read, or none");
        }
        auto extent = std::ranges::upper_bound(extents_, tiles.begin, {},
                                               [](const Extent& e) { return e.tiles.end; });
        for (std::size_t next = tiles.begin; next < tiles.end; ++extent) {
            const TileRange piece{.begin = next, .end = std::min(tiles.end, extent->tiles.end)};
            const auto part = [&](std::span<float> whole) {
                return whole.empty() ? whole
                                     : whole.subspan((next - tiles.begin) * kTileElems,
                                                     piece.size() * kTileElems);
            };
            file_of(extent->rank)
                .read(extent->row + (next - extent->tiles.begin), piece,
                      {.master = part(state.master),
                       .moment1 = part(state.moment1),
                       .moment2 = part(state.moment2)});
            next = piece.end;
        }
    }

    std::vector<int> residual_ranks(std::size_t tile) const override {
        const auto found = residual_ranks_.find(tile);
        return found == residual_ranks_.end() ? std::vector<int>() : found->second;
    }

    void read_residual(int rank, std::size_t tile, std::span<float> residual) override {
        file_of(static_cast<std::size_t>(rank)).read_residual(tile, residual);
    }

private:
    // In version 0.2.0 the index did not say whether there was one.
    store::ProgramState old_program() const {
        const Description& about = index_.description;
        auto kept =
            store::read_program_state(text(folder_, "/", old_program_file_name(about.step)));
        return kept && kept->run == about.run && kept->step == about.step ? std::move(*kept)
                                                                          : store::ProgramState();
    }

    RankFile& file_of(std::size_t rank) {
        if (!files_[rank]) {
            if (open_ == kOpenFiles) {
                for (std::unique_ptr<RankFile>& file : files_) {
                    file.reset();
                }
                open_ = 0;
            }
            files_[rank] = std::make_unique<RankFile>(text(folder_, "/", index_.files[rank]),
                                                      index_.records[rank], index_.ranges[rank]);
            ++open_;
        }
        return *files_[rank];
    }

    std::string folder_;
    Index index_;
    std::vector<Extent> extents_;
    std::map<std::size_t, std::vector<int>> residual_ranks_;  // by tile
    std::vector<std::unique_ptr<RankFile>> files_;            // null: not open
    std::size_t open_ = 0;
};

}  // namespace

std::string hdf5_version() {
    unsigned major = 0;
    unsigned minor = 0;
    unsigned release = 0;
    h5::check(H5get_libversion(&major, &minor, &release), "tell its version");
    return text(major, ".", minor, ".", release);
}

int next_attempt(const std::string& folder, std::int64_t step) {
    int next = 0;
    for (const FileName& file : list_folder(folder)) {
        const bool has_attempt = file.kind == FileKind::rank_file || file.kind == FileKind::program;
        if (has_attempt && file.step == step) {
            next = std::max(next, file.attempt + 1);
        }
    }
    return next;
}

store::ProgramRecord write_program(const std::string& folder, std::int64_t step, int attempt,
                                   int rank, const std::string& run,
                                   std::span<const std::byte> bytes) {
    if (bytes.empty()) {
        return {.step = step};
    }
    return store::write_program_state(text(folder, "/", program_file_name(step, attempt, rank)),
                                      run, step, bytes);
}

std::string publish(const std::string& folder, const Description& description, int attempt,
                    const std::vector<std::vector<TileRange>>& ranges,
                    const std::vector<RankFileRecord>& records, const std::string& record_place) {
    expects(ranges.size() == records.size(), "every rank has ranges and a record");
    Index index{.description = description, .files = {}, .ranges = ranges, .records = records};
    for (int rank = 0; rank < static_cast<int>(ranges.size()); ++rank) {
        index.files.push_back(rank_file_name(description.step, attempt, rank));
    }
    const std::optional<std::string> fault = find_fault(index);
    expects(!fault, fault.value_or("a checkpoint can be read again"));
    expect_rank_files(folder, index);
    std::string path = text(folder, "/", index_name(description.step));
    PartialFile file(path);
    as_fault_of_run([&] {
        std::vector<std::byte> bytes;
        report_unwritten(path, 0, [&] { bytes = write_index(file.partial_path(), index); });
        sync_file(file.partial_path());
        expect_read_back(file.partial_path(), bytes);
        file.commit();
        expect_read_back(path, bytes);
        if (!record_place.empty()) {
            write_newest(record_place, {.run = description.run,
                                        .step = description.step,
                                        .folder = fs::absolute(folder).lexically_normal()});
        }
    });
    remove_older(folder, index);
    release_folder(folder, description);
    return path;
}

std::vector<std::string> find_all(const std::string& folder) {
    std::vector<std::string> paths;
    for (const std::string& one : folders_of_runs(folder)) {
        for (const FileName& file : list_folder(one)) {
            if (file.kind == FileKind::index) {
                paths.push_back(text(one, "/", file.name));
            }
        }
    }
    std::ranges::stable_sort(paths, std::greater(), step_of_index);
    return paths;
}

std::int64_t step_of_index(const std::string& path) {
    const auto name = parse_name(fs::path(path).filename().string());
    return name ? name->step : 0;
}

std::unique_ptr<Reader> Reader::open(const std::string& index_path) {
    return std::make_unique<IndexReader>(index_path);
}

}  // namespace nearstep::checkpoint
