// The optimizer state of a run, which lies in a rank's devices: fills, moves, reads, saves and
// names it, and computes its digest. Run makes it.
#pragma once

#include "base/executor.hpp"
#include "checkpoint/checkpoint.hpp"
#include "engine/resources/resources.hpp"
#include "engine/restart/start.hpp"
#include "engine/state/carried.hpp"
#include "engine/state/other_layout.hpp"
#include "nearstep/options.hpp"
#include "store/lineage.hpp"
#include "store/manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace nearstep::engine {

// The source that the devices were filled from, and the values that a run goes on with there.
struct Origin {
    store::Commit position = {};
    Writer writer = {};
    store::ProgramState program = {};
};

// The origin of state that was read, or a sentence that says why it cannot be used.
struct ReadState {
    std::optional<Origin> origin = std::nullopt;
    std::string damage = {};
    std::int64_t repeated = 0;  // updates, at most of any subgroup
    double seconds = 0;         // that reading and repeating took
};

// One per rank. Calls are collective unless stated otherwise. Steps and positions are the caller's:
// this knows no step.
class State {
public:
    // `resources` and `start` outlive this. `start` says what was found and decided. Not
    // collective.
    State(Resources& resources, const Start& start) : resources_(resources), start_(start) {}

    // --- A run's begin ---

    // Throws ConfigError if a program's file that somebody else made is in the way.
    void expect_own_programs() const;
    // Throws ConfigError if the folders have no room for the files of a node's devices together, or
    // if much of the root filesystem is asked for. Returns a line about the node's drives.
    std::string expect_room() const;
    // If the run goes on from no state, makes the folders and state files that are not there, locks
    // them and throws as check_unchanged(). In any case refuses logs of others. Has made nothing if
    // it throws.
    void claim_unchanged_files();
    // Removes the folders and files that this start has made, since it is refused.
    void withdraw();

    // Runs when all manifests name the new run and nothing is emptied yet; may be empty.
    using Claimed = std::function<void()>;
    // Empties the state files, which have space for all state from here on.
    void start_anew(const Claimed& claimed);
    // Fills the devices with start values, as generation 0, or with the state that the client
    // carries over. Throws ConfigError on all ranks if a value is not finite.
    void write(const Fill& fill, const Carried* carried);
    // Continues from the state files at the decision's commit of that number, which every rank
    // lists. Reads and verifies everything. If data is damaged it changes nothing.
    ReadState resume(std::size_t commit);
    // Fills the state files from those of another layout that hold that commit. If it throws, the
    // new files are removed again.
    ReadState move_in(std::size_t commit);
    // Empties the state files and fills them from the decision's checkpoint of the same model,
    // whatever its layout. If that fails while another state is kept, the files are removed again.
    Origin load();
    // Reads and verifies the part of the decision's checkpoint that this rank needs. Changes
    // nothing.
    void verify_checkpoint();
    // Removes the files that this should have filled. It is unusable afterwards. Not collective.
    void remove_files();
    // Lists the position at which the devices were filled in the manifests, for any csd.durability,
    // with what the client had kept there.
    void list_what_was_filled(store::ProgramState program, const store::Commit& position);
    // Makes the manifests list no steps from here on, because with a csd.durability other than
    // "step" the next step will not be durable. Steps listed before must be in a checkpoint or
    // given up.
    void forget_commits();
    // A run whose manifests were here cannot go on, so its checkpoint folder becomes this run's.
    void replace_runs();

    const store::Lineage& line() const { return line_; }
    const std::string& id() const { return id_; }
    StateTransfer first_transfer() const;
    std::span<const std::byte> kept_program() const { return program_.bytes; }

    // --- Between steps ---

    // Keeps what the client has after `step`, the last one that was done. Not collective.
    void keep_program(std::int64_t step, std::span<const std::byte> bytes);
    void commit(const store::Commit& position);
    double commit_seconds() const { return commit_seconds_; }
    // Leaves the new masters as the next generation, which no manifest names yet.
    void change_masters(const MasterChange& change);
    // Not collective.
    void see(shard::ElementRange range, const StateSight& see);
    std::uint64_t masters_digest();

    std::string claim_checkpoint_folder(const std::string& folder);
    std::string save(const std::string& folder, const store::Commit& position,
                     std::span<const std::byte> program);
    CheckpointTime expect_checkpoint(const std::string& folder);

private:
    std::int64_t generation() const { return resources_.pipeline->generation(); }
    void claim_files();
    void visit(Executor& workers, const Resources::StateWork& work) {
        resources_.visit_states(workers, work);
    }
    // Visits all, then loads the state into the vector. Measures `move`; `before` may be empty.
    void move_all(const Resources::StateWork& before, const Resources::StateWork& move);
    void save_residual(checkpoint::RankFileWriter& writer);
    void restore_residual(checkpoint::Reader& reader);
    // Throws ConfigError if the checkpoint is damaged or not of this parameter vector.
    std::unique_ptr<checkpoint::Reader> open_checkpoint() const;
    // Whether the model has tensors that missed these updates.
    bool fits(const store::MissedUpdates& missed) const {
        return missed.size() <= resources_.layout.tensors.size();
    }
    store::Manifest manifest() const;
    std::string draw_id() const;
    void name(const std::string& id);
    void choose_line(const Writer& writer, std::int64_t step);
    void empty_files(const std::string& replaced, const Claimed& claimed = {});
    store::ProgramState program_with(std::size_t commit) const;
    store::ProgramState program_with(checkpoint::Reader& reader) const;
    void fill_from(checkpoint::Reader& reader);
    std::optional<std::string> fill_from(OtherLayout& old, std::int64_t from_generation);
    checkpoint::Description describe(const store::Commit& position) const;
    checkpoint::Description share_records(const store::Commit& position,
                                          const store::ProgramRecord& kept,
                                          std::span<checkpoint::RankFileRecord> records) const;

    Resources& resources_;
    const Start& start_;
    store::Lineage line_;                   // of the current steps
    std::string id_;                        // see store::Manifest::state
    std::string replaced_;                  // see store::Manifest::replaces
    std::set<std::string> replaced_runs_;   // whose manifests this start has replaced
    std::vector<std::string> new_folders_;  // made by claim_files(), after those in them
    StateTransfer moved_;                   // by this rank, see first_transfer()
    store::ProgramState program_;           // that the run goes on with
    std::int64_t kept_step_ = 0;            // of the last keep_program()
    double commit_seconds_ = 0;
    std::optional<store::Commit> committed_;  // the last one
    Executor alone_{0};                       // the caller's thread: of files that no other may use
};

}  // namespace nearstep::engine
