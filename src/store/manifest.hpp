// The file that says which steps a rank's state files hold. It is replaced atomically.
// docs/formats/state-file.md describes the format.
#pragma once

#include "base/number_list.hpp"
#include "store/lineage.hpp"
#include "store/missed_updates.hpp"
#include "store/program_state.hpp"
#include "store/storage.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::store {

// A step whose state was flushed on every rank before the commit was listed.
struct Commit {
    std::int64_t step = 0;        // steps done; also the data position
    std::int64_t generation = 0;  // updates done: `step` minus the skipped ones
    double loss_scale = 1;
    std::int64_t good_steps = 0;  // since the loss scale last changed
    double norm = 0;              // of the gradient, for clipping the next step; 0: its own norm
    MissedUpdates missed = {};

    friend bool operator==(const Commit&, const Commit&) = default;
};

// False for values that no run writes, behind whatever checksum.
bool is_possible(const Commit& commit);

// Members that may be empty are missing from older manifests.
struct Manifest {
    Lineage line = {};        // the run these steps belong to
    std::string model = {};   // the settings that fix the parameter vector, one line
    std::string layout = {};  // what determines each tile's place and format, one line
    std::uint64_t seed = 0;
    std::string data = {};     // digest of the text, 16 hexadecimal digits; may be empty
    std::string dtype = {};    // of the parameters that the model computes with; may be empty
    std::string threads = {};  // see engine::Identity: "2", or of each rank: "2,1"; may be empty
    std::int64_t steps = 0;    // of the whole run
    // Drawn when the state files were filled, the same on all ranks. Files belong together only if
    // it matches.
    std::string state = {};
    // The state in other files that is kept until this one is durable on all ranks; empty: none.
    std::string replaces = {};
    std::vector<std::string> files = {};  // names of the rank's state files, in device order
    std::vector<NumberRange> copy = {};   // ranks that together hold all state; empty: all ranks
    // "HOST FOLDER" of the manifests of a few other ranks: see ranks_placed_by(). For messages.
    std::map<int, std::string> places = {};
    // Records of what the rank's program kept with the commits, newest first: see record_at().
    // Empty: unknown.
    std::vector<ProgramRecord> programs = {};
    // Newest first: at most two, of adjacent generations, which lie in different places.
    std::vector<Commit> commits = {};

    friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Converts a manifest to the text of its file, and back; nullopt unless `content` is a complete
// manifest of this version.
std::string print_manifest(const Manifest& manifest);
std::optional<Manifest> parse_manifest(std::string_view content);
// Whether text that parse_manifest() refuses says that a newer version wrote it: by its first line,
// or by a right digest over lines that this version does not know.
bool is_of_newer_version(std::string_view content);

// The ranks whose places the manifest of `rank` has, of so many: its neighbours and, doubling the
// distance, few of the others. So a manifest grows with the logarithm of the number of ranks, and
// that many manifests know each place.
std::vector<int> ranks_placed_by(int rank, int ranks);

// Lists `commit` first. Removes commits of the same generation (a skipped step) and those whose
// place the next step may overwrite.
void add_commit(Manifest& manifest, const Commit& commit);

// The commits that all ranks hold, newest first, given each rank's list. A generation counts if
// every list has it; its commit is the one with the earliest step.
std::vector<Commit> common_commits(std::span<const std::vector<Commit>> of_ranks);

class ManifestFile {
public:
    // `storage`: as for a File.
    explicit ManifestFile(std::string path, Storage* storage = nullptr);

    const std::string& path() const { return path_; }

    // nullopt if there is no file. Throws NewerVersionError if a newer version wrote it,
    // DamageError if it is damaged, a link or no regular file, and IoError if it cannot be read.
    std::optional<Manifest> read() const;

    // Throws the DamageError of read(). `reason`: a phrase, or empty.
    [[noreturn]] void report_damage(const std::string& reason) const;

    // On return the file holds `manifest` and survives a power cut. A crash before that leaves the
    // old content. Throws IoError.
    void replace(const Manifest& manifest);

    // Removes a manifest that replace() made where there was none.
    void withdraw();

    // On return the file is gone, even after a power cut. Throws IoError.
    void remove();

private:
    [[noreturn]] void fail(const char* verb, const std::string& path, int reason) const;
    void flush_folder();

    std::string path_;
    Storage system_;
    Storage* storage_;
    bool is_made_ = false;
};

}  // namespace nearstep::store
