// The file that says which steps of a run a rank's state files hold, replaced atomically.
// The format is described in docs/state-file.md.
#pragma once

#include "store/lineage.hpp"
#include "store/storage.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::store {

// A step of which every rank had its state in storage, flushed, when the commit was listed.
struct Commit {
    std::int64_t step = 0;        // steps done; also the data position
    std::int64_t generation = 0;  // updates done: step less the skipped ones
    double loss_scale = 1;
    std::int64_t good_steps = 0;  // since the loss scale last changed
    double norm = 0;              // of the gradient, that the next step is clipped by; 0: its own

    friend bool operator==(const Commit&, const Commit&) = default;
};

// Older manifests lack what may be empty.
struct Manifest {
    Lineage line = {};        // whose steps these are
    std::string model = {};   // the settings that fix the parameter vector, one line
    std::string layout = {};  // what fixes where each tile lies and in what format, one line
    std::uint64_t seed = 0;
    std::string data = {};   // digest of the text, 16 hexadecimal digits; may be empty
    std::string dtype = {};  // of the parameters that the model computes with; may be empty
    std::int64_t steps = 0;  // of the whole run
    // Drawn when the state files were filled, the same for all ranks: only together are they whole.
    std::string state = {};
    // The state that stays in other files until this one is durable on all ranks; empty: none.
    std::string replaces = {};
    std::vector<std::string> files = {};  // names of the rank's state files, in device order
    std::vector<int> copy = {};           // ranks that hold all state together; empty: all ranks
    // Of each rank in turn "HOST PATH": where its manifest lies. For messages.
    std::vector<std::string> places = {};
    // Newest first: at most two, of neighbouring generations, which lie in different places.
    std::vector<Commit> commits = {};

    friend bool operator==(const Manifest&, const Manifest&) = default;
};

// The content of a manifest's file, and back; nullopt if `content` is not all of one of this
// version.
std::string print_manifest(const Manifest& manifest);
std::optional<Manifest> parse_manifest(std::string_view content);

// Lists `commit` first. What it replaces: the same generation (a skipped step), and generations
// whose place the next step may overwrite.
void add_commit(Manifest& manifest, const Commit& commit);

// What all ranks hold, newest first, given each rank's list: per generation that is in all of them,
// the earliest of its steps.
std::vector<Commit> common_commits(std::span<const std::vector<Commit>> of_ranks);

class ManifestFile {
public:
    // `storage`: as for a File.
    explicit ManifestFile(std::string path, Storage* storage = nullptr);

    const std::string& path() const { return path_; }

    // nullopt if there is none. Throws DamageError if there is one that is damaged or of another
    // format, IoError if it cannot be read.
    std::optional<Manifest> read() const;

    // On return the file holds `manifest` and outlives a power cut; a crash before leaves what it
    // held. Throws IoError.
    void replace(const Manifest& manifest);

    // On return there is none, even after a power cut. Throws IoError.
    void remove();

private:
    [[noreturn]] void fail(const char* verb, const std::string& path, int reason) const;
    void flush_folder();

    std::string path_;
    Storage system_;
    Storage* storage_;
};

}  // namespace nearstep::store
