// Decides what a run begins with from what its ranks found. No I/O and no MPI: all ranks decide
// alike, and tests can enumerate the cases. docs/restart.md has them in a table.
#pragma once

#include "engine/restart/job_record.hpp"
#include "engine/restart/refusal.hpp"
#include "nearstep/options.hpp"
#include "nearstep/start_request.hpp"
#include "store/lineage.hpp"
#include "store/manifest.hpp"
#include "store/names.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::engine {

using store::kSets;

// A manifest in one of the folders of csd.path.
struct FoundManifest {
    int node = 0;  // the first of those that see it as RankPlaces::view() says
    std::string path = {};
    std::uint64_t inode = 0;
    int rank = 0;  // that wrote it
    int set = 0;
    std::optional<store::Manifest> manifest = std::nullopt;  // nullopt: damaged
    std::string damage = {};                                 // as a sentence
    bool is_of_newer_version = false;                        // what seems damaged is so
    // Where the node has the state files that the manifest names; an empty path: not found.
    std::vector<std::string> files = {};
    // Where it has what each of the manifest's records of the program names; an empty path: missing
    // or not whole.
    std::vector<std::string> programs = {};
    bool is_of_other_job = false;  // of a run that this job of Slurm's has not begun
};

// A state file that no manifest in the folders names. Its manifest may be in a folder that is
// missing.
struct FoundRemains {
    int node = 0;
    std::string path = {};
    std::int64_t generation = 0;  // above 0: files with start values only are no loss
};

// A checkpoint in the run's folder, or one that the user named.
struct FoundCheckpoint {
    std::string path = {};
    std::int64_t step = 0;
    std::int64_t generation = 0;
    std::int64_t steps = 0;    // of the whole run
    store::Lineage line = {};  // if damaged: of the folder's run; empty: unknown
    std::string model = {};
    std::string damage = {};                      // as a sentence; empty: intact
    std::vector<std::string> state_folders = {};  // csd.path of the run that wrote it
    bool is_of_other_job = false;                 // as FoundManifest's
};

// The places of one rank of this run.
struct RankPlaces {
    int node = 0;
    int alike = -1;  // the first node that sees the same files as `node`, such as those of a folder
                     // that all nodes share; -1: no node before it does
    int view() const { return alike < 0 ? node : alike; }
    std::array<std::string, kSets> manifests = {};  // paths
    std::string layout = {};
    // Paths of the state files. The files of an older state may lie elsewhere.
    std::array<std::vector<std::string>, kSets> files = {};
};

struct Findings {
    std::vector<RankPlaces> ranks = {};
    std::vector<std::string> hosts = {};  // of each node
    std::vector<FoundManifest> manifests = {};
    std::vector<FoundRemains> remains = {};
    std::vector<FoundCheckpoint> checkpoints = {};        // in the folder
    std::optional<FoundCheckpoint> named = std::nullopt;  // StartRequest::path
    StartRequest request = {};
    ProgramUse program = ProgramUse::none;  // of the client
    int computing = 0;                      // ranks that compute, which are the first
    JobRuns job = {};                       // what earlier starts of this job have begun here
    std::string model = {};                 // of this run, one line
    std::string state_folder = {};          // for messages
    std::string memory_folder = {};         // with csd.tiers.memory, for messages
    std::string checkpoint_folder = {};
};

// The run that wrote a state, as its manifest or checkpoint tells.
struct Writer {
    std::uint64_t seed = 0;    // another seed begins a new line
    std::string data = {};     // digest; empty: unknown; other data begins a new line
    std::string dtype = {};    // of the parameters; empty: unknown
    std::string threads = {};  // see store::Manifest::threads; empty: unknown
};

// Names a program that was kept with a step: an index in Findings::manifests, and in its records.
struct ProgramSource {
    std::size_t manifest = 0;
    std::size_t record = 0;
};

// The programs with which ranks that compute go on at a step of a state.
struct ProgramsAt {
    bool is_unlisted = false;  // in version 0.2.0 manifests had no records
    std::vector<std::optional<ProgramSource>> of_ranks = {};  // nullopt: nothing
    std::vector<MissingFile> missing = {};                    // what is not whole
};

// A step of a state, with what the programs kept at it.
struct KeptStep {
    store::Commit commit = {};
    ProgramsAt programs = {};  // nothing where the client keeps nothing
};

enum class Action {
    start_anew,
    resume_state,     // of the same layout, in place
    read_state,       // of another layout, into new files
    load_checkpoint,  // into state files
    refuse            // and change nothing
};

struct Decision {
    Action action = Action::refuse;
    Refusal refusal = {};  // for refuse

    // The line of the state or checkpoint. The run continues it or, with begins_line, branches off.
    store::Lineage line = {};
    bool begins_line = false;
    // resume_state and read_state: the steps of the state, newest first, and the manifests that
    // list them, as indices in Findings::manifests (in rank order with resume_state).
    std::vector<KeptStep> steps = {};
    std::vector<std::size_t> manifests = {};
    Writer writer = {};      // of that state
    std::string state = {};  // its id
    // The checkpoint to load. For resume_state, one as new as the state, in case the state is
    // damaged. Empty: none.
    std::string checkpoint = {};
    // The step of the newest checkpoint of this line in the folder, used or not; -1: there is none.
    std::int64_t checkpoint_step = -1;
    int set = 0;  // of the file names to use
    // The state that must stay until the chosen one is durable. Empty: none.
    std::string replaces = {};
    std::vector<std::string> notes = {};  // sentences about what was found but is not used
};

Decision decide(const Findings& found);

// Number of ranks in a layout line; 0 if it has none.
int ranks_of_layout(const std::string& layout);

}  // namespace nearstep::engine
