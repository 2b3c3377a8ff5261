// What a run begins with, as a function of all that its ranks found: no I/O and no MPI, so that all
// ranks decide alike and a test can enumerate the cases. The table of them is in docs/restart.md.
#pragma once

#include "store/lineage.hpp"
#include "store/manifest.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::engine {

// State files have one of two sets of names, so that one state can be written beside another.
constexpr int kSets = 2;

// A manifest in one of the folders of csd.path.
struct FoundManifest {
    int node = 0;  // that sees it
    std::string path = {};
    int rank = 0;  // that wrote it
    int set = 0;
    std::optional<store::Manifest> manifest = std::nullopt;  // nullopt: it is damaged
    std::string damage = {};                                 // as a sentence
    // Where the state files that it names were found on the node; an empty path: nowhere.
    std::vector<std::string> files = {};
};

// A state file in one of the folders that no manifest in them names: the folder with the manifest
// may be missing.
struct FoundRemains {
    int node = 0;
    std::string path = {};
    std::int64_t generation = 0;  // above 0: of files that only hold start values nothing is lost
};

// A checkpoint in the run's folder, or the one that the user named.
struct FoundCheckpoint {
    std::string path = {};
    std::int64_t step = 0;
    std::int64_t generation = 0;
    std::int64_t steps = 0;  // of the whole run
    store::Lineage line = {};
    std::string model = {};
    std::string damage = {};  // as a sentence; empty: it is whole
};

// What this run has for each of its ranks.
struct Seat {
    int node = 0;
    std::array<std::string, kSets> manifests = {};  // paths
    std::string layout = {};
    // Paths of the state files; those of an older state may lie elsewhere.
    std::array<std::vector<std::string>, kSets> files = {};
};

struct Found {
    std::vector<Seat> ranks = {};
    std::vector<std::string> hosts = {};  // of each node
    std::vector<FoundManifest> manifests = {};
    std::vector<FoundRemains> remains = {};
    std::vector<FoundCheckpoint> checkpoints = {};        // in the folder
    std::optional<FoundCheckpoint> named = std::nullopt;  // --from
    bool is_resuming = false;                             // --resume or --resume-if-any
    bool may_start_anew = false;                          // --resume-if-any
    bool is_fresh = false;                                // --fresh
    std::string model = {};                               // of this run, one line
    std::string state_folder = {};                        // for messages
    std::string checkpoint_folder = {};
};

enum class Action {
    start_anew,
    resume_state,     // of the same layout, where it lies
    read_state,       // of another layout, into files of their own
    load_checkpoint,  // into state files
    refuse            // and change nothing
};

struct Decision {
    Action action = Action::refuse;
    std::string refusal = {};  // a sentence, with refuse

    // What the state or the checkpoint is of. It is gone on with, or, with begins_line, left.
    store::Lineage line = {};
    bool begins_line = false;
    // resume_state and read_state: which steps the state holds, newest first, and whose manifests,
    // by their places in Found::manifests, say so. With resume_state in rank order.
    std::vector<store::Commit> commits = {};
    std::vector<std::size_t> manifests = {};
    // load_checkpoint: what to load. With resume_state one that is as new, if there is one, in case
    // that the state is damaged. Empty: none.
    std::string checkpoint = {};
    // Of the newest checkpoint of the line in the folder, used or not; -1: there is none.
    std::int64_t checkpoint_step = -1;
    int set = 0;  // of the names of the files to use
    // The state that must stay until the chosen one is durable; empty: none.
    std::string replaces = {};
    std::vector<std::string> notes = {};  // what was found and is not used, as sentences
};

Decision decide(const Found& found);

// "host n1: p0/rank-0.manifest holds step 5 of run X (rank 0 of 2), ...": all that was found.
std::string describe(const Found& found);

// Ranks of the run that a layout is of, as its line says; 0 if it does not.
int ranks_of_layout(const std::string& layout);

}  // namespace nearstep::engine
