// Brings an engine to the chosen starting point.

#include "base/error.hpp"
#include "base/packed.hpp"
#include "base/plain_file.hpp"
#include "base/wording.hpp"
#include "checkpoint/owner.hpp"
#include "engine/engine.hpp"
#include "engine/placement/device_speeds.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/site_links.hpp"
#include "engine/restart/job_record.hpp"
#include "engine/restart/search.hpp"
#include "engine/state/start_value_check.hpp"
#include "mpi/gathered_text.hpp"
#include "store/folder.hpp"
#include "store/manifest.hpp"
#include "store/provenance.hpp"
#include "store/subgroup_header.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

namespace nearstep::engine {

namespace {

// Removes what the decision abandoned: first the manifests of other states, then the files that
// they name. The first rank of each node removes them. Returns sentences about what was removed.
class LeftBehind {
public:
    LeftBehind(const mpi::Communicator& world, const Start& start)
        : world_(world),
          found_(start.found),
          set_(start.decision.set),
          memory_(config::memory_folder(start.settings)),
          others_(state_files(start.settings, world.rank(), world.size(), 1 - set_)),
          node_(found_.ranks[static_cast<std::size_t>(world.rank())].node),
          is_first_(is_first_of_node(world, found_)) {
        const Placed& settings = start.settings;
        for (const FoundManifest& one : found_.manifests) {
            if (is_first_ && one.node == node_) {
                mine_.push_back(&one);
            }
        }
        for (int rank = 0; rank < world.size(); ++rank) {
            const Seat& seat = found_.ranks[static_cast<std::size_t>(rank)];
            current_.insert({seat.node, seat.manifests[static_cast<std::size_t>(set_)]});
        }
        partial_ = manifest_path(settings, world.rank(), 1 - set_) + ".partial";
        const std::vector<std::string> mine =
            state_files(settings, world.rank(), world.size(), set_);
        for (const std::string& of_rank : gather_text(world, packed(mine))) {
            std::vector<std::string> files;
            unpack(of_rank, files);
            files_.insert(files.begin(), files.end());
        }
    }

    // `state`: the id of the state that the engine has now.
    void remove(const std::string& state) const {
        world_.together([&] {
            for (const FoundManifest* one : mine_) {
                if (is_left(*one) && !names(one->path, state)) {
                    store::ManifestFile(one->path).remove();
                }
            }
        });
        world_.together([&] {
            for (const FoundManifest* one : mine_) {
                remove_files_of(*one);
            }
            // In memory, no drive with their manifest can be missing.
            for (const FoundRemains& one : found_.remains) {
                if (is_first_ && one.node == node_ && files_.count(one.path) == 0 &&
                    store::folder_of(one.path) == memory_ && is_own_plain(one.path)) {
                    ::unlink(one.path.c_str());
                }
            }
            if (is_first_ && store::is_private_folder(memory_)) {
                ::rmdir(memory_.c_str());  // fails unless it is empty
            }
            for (const std::string& file : others_) {
                if (store::is_removable_state(file, {})) {
                    ::unlink(file.c_str());
                }
            }
            if (store::is_removable_manifest(partial_)) {
                ::unlink(partial_.c_str());
            }
        });
    }

    // Throws ConfigError if a manifest that has to go is not this user's or not nearstep's, or one
    // of its state files is another run's.
    void check() const {
        world_.together([&] {
            for (const FoundManifest* one : mine_) {
                check_files_of(*one);
                if (is_left(*one) && !store::is_removable_manifest(one->path)) {
                    throw ConfigError(
                        text("The file ", one->path,
                             " has the name of a manifest that this start would remove, but "
                             "belongs to another user or was not made by nearstep: move it away, "
                             "or choose another folder for ",
                             Term::path, "."));
                }
            }
        });
    }

    std::vector<std::string> describe() const {
        std::vector<std::string> lines;
        for (const FoundManifest& one : found_.manifests) {
            if (is_left(one) && !is_seen_twice(one)) {
                lines.push_back(text("removed ", one.path, " and its state files",
                                     one.manifest && !one.manifest->commits.empty()
                                         ? text(" (step ", one.manifest->commits.front().step,
                                                " of run ", one.manifest->line.run, ")")
                                         : ""));
            }
        }
        return lines;
    }

private:
    // A manifest without a step may name files that were not emptied for it yet.
    void check_files_of(const FoundManifest& one) const {
        if (!is_left(one) || !one.manifest || one.manifest->commits.empty()) {
            return;
        }
        for (const std::string& file : one.files) {
            if (store::holds_other_state(file, store::number_of_state(one.manifest->state))) {
                throw ConfigError(text("The state file ", file, " belongs to another run than ",
                                       one.path,
                                       " beside it, with which this start would remove it: "
                                       "put that run's own file back, or move this one away."));
            }
        }
    }

    void remove_files_of(const FoundManifest& one) const {
        std::vector<std::string> removable;
        for (const std::string& file : one.files) {
            if (files_.count(file) == 0 && store::is_removable_state(file, one.files)) {
                removable.push_back(file);
            }
        }
        for (const std::string& file : removable) {
            ::unlink(file.c_str());
        }
    }

    bool is_left(const FoundManifest& one) const {
        return current_.count({one.node, one.path}) == 0;
    }

    // Several nodes may see one folder. Then a manifest that another node's rank has written since
    // the search is not left behind.
    bool names(const std::string& path, const std::string& state) const {
        if (std::ranges::none_of(current_, [&](const auto& one) { return one.second == path; })) {
            return false;
        }
        try {
            const std::optional<store::Manifest> now = store::ManifestFile(path).read();
            return now && now->state == state;
        } catch (const DamageError&) {
            return false;
        }
    }

    // Whether this is a current manifest that another node sees, too.
    bool is_seen_twice(const FoundManifest& one) const {
        return std::ranges::any_of(found_.manifests, [&](const FoundManifest& other) {
            return !is_left(other) && other.path == one.path && other.manifest && one.manifest &&
                   other.manifest->state == one.manifest->state;
        });
    }

    const mpi::Communicator& world_;
    const Found& found_;
    int set_;
    std::string memory_;               // folder
    std::vector<std::string> others_;  // of this rank, in the other set
    int node_;
    bool is_first_;                                  // of the node
    std::vector<const FoundManifest*> mine_;         // to remove, if they are left
    std::set<std::pair<int, std::string>> current_;  // node and path of this run's manifests
    std::set<std::string> files_;                    // state files of this run
    std::string partial_;  // unfinished manifest of a killed rank in the other set
};

[[noreturn]] void refuse_damage(const Start& start, const BeginReport& begun) {
    throw ConfigError(in_words({.reason = Reason::nothing_whole,
                                .remedies = {Remedy::from, Remedy::fresh},
                                .detail = begun.lines.back()},
                               start.found));
}

// Describes the state that a fresh start discards; empty if there is none.
std::string describe_overwritten(const mpi::Communicator& world, const Placed& settings, int set) {
    const auto holds_bytes = [](const std::string& path) {
        std::error_code is_missing;
        const auto bytes = std::filesystem::file_size(path, is_missing);
        return !is_missing && bytes > 0;
    };
    const store::RankFiles files = files_of_rank(settings, world, set);
    std::array<std::uint64_t, 2> counts = {
        static_cast<std::uint64_t>(std::ranges::count_if(files.states, holds_bytes)),
        holds_bytes(files.manifest) ? 1U : 0U};
    world.sum(counts);
    return counts[0] + counts[1] == 0
               ? ""
               : text(Term::fresh, " overwrites an earlier run in ", settings.csd.path.front(),
                      " (state files: ", counts[0], ", manifests: ", counts[1], ")");
}

// Sums that threads share depend on how many there are. Empty: as many as before, or unknown.
std::string describe_threads(const std::string& before, const std::string& now) {
    return before.empty() || now.empty() || before == now
               ? ""
               : text("warning: the model's arithmetic was on ", before,
                      " threads per rank before and is on ", now,
                      " now, so the steps from here on have other bits than those of a run without "
                      "a restart: to have the same, set the threads as before (",
                      Term::threads, ")");
}

// Appends those of the lines `more` that are not empty.
void add(std::vector<std::string>& lines, const std::vector<std::string>& more) {
    std::ranges::copy_if(more, std::back_inserter(lines),
                         [](const std::string& line) { return !line.empty(); });
}

}  // namespace

// Resumes the newest intact step, of this layout or of another one. A checkpoint of the same step
// wins over an older step.
void Engine::resume(const Start& start, BeginReport& begun) {
    const Decision& decision = start.decision;
    const bool is_in_place = decision.action == Action::resume_state;
    bool has_checkpoint = !decision.checkpoint.empty();
    for (std::size_t i = 0; i < decision.commits.size(); ++i) {
        const store::Commit& commit = decision.commits[i];
        const std::optional<std::string> damage =
            is_in_place ? restore_state(start, i) : restore_from(start, i);
        if (!damage) {
            begun.lines.push_back(text("resumed from the state files ",
                                       is_in_place ? "" : "of another layout ", "at step ",
                                       commit.step));
            return;
        }
        begun.lines.push_back(text("The state of step ", commit.step, " is not used. ", *damage));
        if (has_checkpoint) {
            try {
                verify(decision.checkpoint);
            } catch (const ConfigError& fault) {
                begun.lines.emplace_back(fault.what());
                has_checkpoint = false;
                continue;
            }
            restore(decision);
            begun.lines.push_back(text("resumed from ", decision.checkpoint, " at step ",
                                       steps_done(), ", which is as new"));
            return;
        }
    }
    if (!is_in_place) {
        remove_state_files();
    }
    refuse_damage(start, begun);
}

// If no other state is kept, the files are emptied, so the checkpoint is verified before that.
void Engine::load(const Start& start, BeginReport& begun) {
    const Decision& decision = start.decision;
    try {
        if (decision.replaces.empty()) {
            verify(decision.checkpoint);
        }
        restore(decision);
    } catch (const ConfigError& damage) {
        begun.lines.emplace_back(damage.what());
        refuse_damage(start, begun);
    }
    begun.lines.push_back(text("resumed from ", decision.checkpoint, " at step ", steps_done()));
}

// A run whose manifests were here cannot go on, so its checkpoint folder becomes this run's.
void Engine::replace_runs(const Found& found) {
    for (const FoundManifest& one : found.manifests) {
        if (one.manifest && one.manifest->line.run != line_.run) {
            replaced_runs_.insert(one.manifest->line.run);
        }
    }
    world_.together([&] {
        if (world_.rank() == 0) {
            checkpoint::take_over_folder(config::checkpoint_folder(settings_),
                                         {.line = line_, .replaced = replaced_runs_});
        }
    });
}

// What was not there must be this run's before it is decided that nobody else went on.
void Engine::claim_files(const Found& found) {
    claim_files();
    try {
        check_unchanged(world_, settings_, found);
    } catch (const IoError&) {  // on all ranks alike
        withdraw();
        throw;
    }
}

void Engine::withdraw() {
    world_.together([this] {
        for (const auto& device : pipeline_->devices()) {
            device->withdraw();
        }
        log_.withdraw();
    });
    world_.together([this] {
        for (const std::string& folder : new_folders_) {
            ::rmdir(folder.c_str());  // fails unless it is empty
        }
    });
}

BeginReport Engine::begin(const Start& start) {
    const Decision& decision = start.decision;
    check_unchanged(world_, settings_, start.found);
    const LeftBehind left(world_, start);
    left.check();
    if (options_.program != ProgramUse::none) {
        world_.together([this] { log_.expect_own_programs(); });
    }
    if (decision.action != Action::resume_state) {
        expect_room();
        claim_files(start.found);
    }
    const std::string overwritten =
        start.found.wish.is_fresh() ? describe_overwritten(world_, settings_, decision.set) : "";
    BeginReport begun{.lines = describe_speeds(settings_, owners_),
                      .checkpoint_step = decision.checkpoint_step};
    add(begun.lines, decision.notes);
    switch (decision.action) {
        case Action::start_anew:
            start_anew([&] { left.remove(state_); });
            break;
        case Action::resume_state:
        case Action::read_state:
            resume(start, begun);
            break;
        case Action::load_checkpoint:
            load(start, begun);
            break;
        case Action::refuse:
            throw ConfigError(in_words(decision.refusal, start.found));
    }
    replace_runs(start.found);
    const bool is_volatile = settings_.csd.durability != config::Durability::step;
    if (is_volatile && decision.action != Action::start_anew &&
        decision.action != Action::load_checkpoint && decision.checkpoint_step != steps_done()) {
        // The next update overwrites the state. What it was read from stays until then.
        begun.lines.push_back("checkpoint " +
                              save(config::checkpoint_folder(settings_), kept_program()));
        begun.checkpoint_step = steps_done();
    }
    if (decision.action != Action::start_anew) {
        left.remove(state_);
        replace_runs(start.found);
    }
    add(begun.lines, left.describe());
    if (decision.action != Action::start_anew && line().run != decision.line.run) {
        begun.lines.push_back(text("run ", line().run, " goes on from step ", steps_done(),
                                   " of run ", decision.line.run));
    }
    if (is_volatile && decision.action != Action::start_anew) {
        forget_commits();
    }
    for (const auto& device : pipeline_->devices()) {
        device->expect_updates();
    }
    add(begun.lines, {describe_threads(threads_before_, threads_), overwritten,
                      check_network(world_, settings_)});
    if (world_.rank() == 0) {
        note_begun(settings_.csd.path.front(), line_.run);
    }
    count_from_here();
    return begun;
}

void Engine::fill(const Start& start, const Fill& fill, const Carried* carried) {
    const std::int64_t generation = carried == nullptr ? 0 : carried->position.generation;
    StartValueCheck check(layout_);
    world_.together([&] {
        move_state(
            [&](const auto& of, const csd::StateArrays& state) {
                const std::size_t elems =
                    std::min(state.master.size(), layout_.elems - of.first_elem());
                fill(of.first_elem(), state.master.first(elems));
                check.look(of.first_elem(), state.master.first(elems));
                std::ranges::fill(state.master.subspan(elems), 0.0F);  // padding
                if (carried != nullptr) {
                    std::ranges::fill(state.moment1.subspan(elems), 0.0F);
                    std::ranges::fill(state.moment2.subspan(elems), 0.0F);
                    carried->moments(of.first_elem(), state.moment1.first(elems),
                                     state.moment2.first(elems));
                }
            },
            [&](const auto& of, const csd::StateArrays& state) {
                of.write(generation,
                         carried == nullptr ? csd::StateArrays{state.master, {}, {}} : state);
            });
    });
    check.refuse(world_, owners_.copies());
    if (carried == nullptr) {
        go_on_from(0);
        pipeline_->gather();
        commit();
    } else {
        go_on_at(carried->position, {});
        list_what_was_filled(
            {.run = line_.run, .step = steps_done_, .bytes = carried->program, .path = {}});
        if (settings_.csd.durability != config::Durability::step) {
            forget_commits();
        }
    }
    replace_runs(start.found);
    count_from_here();
}

}  // namespace nearstep::engine
