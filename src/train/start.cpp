#include "train/start.hpp"

#include "base/error.hpp"
#include "config/load.hpp"
#include "store/manifest.hpp"
#include "store/subgroup_header.hpp"
#include "train/devices.hpp"
#include "train/gathered_text.hpp"
#include "train/restart_search.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace nearstep::train {

namespace {

// Removes what the decision left behind: other states' manifests first, then the files that they
// name. Each node's first rank does. Returns what was removed, as sentences.
class LeftBehind {
public:
    LeftBehind(const mpi::Communicator& world, const config::Run& run, const Start& start)
        : world_(world), found_(start.found), set_(start.decision.set) {
        for (int rank = 0; rank < world.size(); ++rank) {
            const Seat& seat = found_.ranks[static_cast<std::size_t>(rank)];
            current_.insert({seat.node, seat.manifests[static_cast<std::size_t>(set_)]});
        }
        for (const std::string& file : state_files(run, world.rank(), world.size(), 1 - set_)) {
            others_.push_back(file);
        }
        partial_ = manifest_path(run, world.rank(), 1 - set_) + ".partial";
        const std::vector<std::string> mine = state_files(run, world.rank(), world.size(), set_);
        for (const std::string& of_rank : gather_text(world, pack(mine))) {
            for (const std::string& file : unpack(of_rank)) {
                files_.insert(file);
            }
        }
    }

    void remove() const {
        const int node = found_.ranks[static_cast<std::size_t>(world_.rank())].node;
        const auto first = std::find_if(found_.ranks.begin(), found_.ranks.end(),
                                        [&](const Seat& seat) { return seat.node == node; });
        const bool is_first = first - found_.ranks.begin() == world_.rank();
        world_.together([&] {
            for (const FoundManifest& one : found_.manifests) {
                if (is_first && is_left(one) && one.node == node) {
                    store::ManifestFile(one.path).remove();
                }
            }
        });
        world_.together([&] {
            for (const FoundManifest& one : found_.manifests) {
                for (const std::string& file : one.files) {
                    if (is_first && one.node == node && files_.count(file) == 0) {
                        ::unlink(file.c_str());
                    }
                }
            }
            for (const std::string& file : others_) {
                if (store::is_state_file(file)) {
                    ::unlink(file.c_str());
                }
            }
            ::unlink(partial_.c_str());
        });
    }

    std::vector<std::string> describe() const {
        std::vector<std::string> lines;
        for (const FoundManifest& one : found_.manifests) {
            if (is_left(one)) {
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
    bool is_left(const FoundManifest& one) const {
        return current_.count({one.node, one.path}) == 0;
    }

    const mpi::Communicator& world_;
    const Found& found_;
    int set_;
    std::set<std::pair<int, std::string>> current_;  // node and path of this run's manifests
    std::set<std::string> files_;                    // state files of this run
    std::string partial_;  // that a rank which was killed left of a manifest in the other set
    std::vector<std::string> others_;  // of this rank, in the other set
};

// What the manifests that were chosen say, of them one that is on the newest line.
Origin origin_of(const Start& start) {
    const Decision& decision = start.decision;
    Origin origin{
        .line = decision.line, .begins_line = decision.begins_line, .replaces = decision.replaces};
    for (const std::size_t chosen : decision.manifests) {
        const store::Manifest& manifest = *start.found.manifests[chosen].manifest;
        if (origin.state.empty() || manifest.line == decision.line) {
            origin.seed = manifest.seed;
            origin.data = manifest.data;
            origin.dtype = manifest.dtype;
            origin.state = manifest.state.empty() ? manifest.line.run : manifest.state;
        }
    }
    return origin;
}

[[noreturn]] void refuse_damage(const Start& start, const Begun& begun) {
    throw ConfigError(text("There is nothing whole to resume from, so nothing was changed. ",
                           begun.lines.back(), " Found: ", describe(start.found),
                           ". Go on from a checkpoint with --from, or start anew with --fresh."));
}

// The newest step of the state that is whole. A checkpoint as new comes before an older step.
void resume(Trainer& trainer, const Start& start, Begun& begun) {
    const Decision& decision = start.decision;
    const Origin origin = origin_of(start);
    for (const store::Commit& commit : decision.commits) {
        const std::optional<std::string> damage = trainer.restore_state(origin, commit);
        if (!damage) {
            begun.lines.push_back(text("resumed from the state files at step ", commit.step));
            return;
        }
        begun.lines.push_back(text("The state of step ", commit.step, " is not used. ", *damage));
        if (!decision.checkpoint.empty()) {
            trainer.verify(decision.checkpoint);
            Origin of_checkpoint = origin;
            of_checkpoint.replaces.clear();
            trainer.restore(decision.checkpoint, of_checkpoint);
            begun.lines.push_back(text("resumed from ", decision.checkpoint, " at step ",
                                       trainer.steps_done(), ", which is as new"));
            return;
        }
    }
    refuse_damage(start, begun);
}

// With no other state to keep, its files are emptied for the checkpoint: it is read before that.
void load(Trainer& trainer, const Start& start, Begun& begun) {
    const Decision& decision = start.decision;
    try {
        if (decision.replaces.empty()) {
            trainer.verify(decision.checkpoint);
        }
        trainer.restore(decision.checkpoint, origin_of(start));
    } catch (const ConfigError& damage) {
        begun.lines.emplace_back(damage.what());
        refuse_damage(start, begun);
    }
}

void read_state(Trainer& trainer, const Start& start, Begun& begun) {
    for (const store::Commit& commit : start.decision.commits) {
        const std::optional<std::string> damage =
            trainer.restore_from(start.found, start.decision, origin_of(start), commit);
        if (!damage) {
            begun.lines.push_back(
                text("resumed from the state files of another layout at step ", commit.step));
            return;
        }
        begun.lines.push_back(text("The state of step ", commit.step, " is not used. ", *damage));
    }
    trainer.remove_state_files();
    refuse_damage(start, begun);
}

}  // namespace

void refuse_unfinished(const config::Run& run, bool looks_at_checkpoints) {
    const Decision decision = decide(search_here(run, looks_at_checkpoints));
    if (decision.action == Action::refuse) {
        throw ConfigError(decision.refusal);
    }
}

Start find_start(const mpi::Communicator& world, const config::Run& run,
                 const data::Tokenizer& tokenizer, const RunOptions& options) {
    Start start{.found = search(world, run, tokenizer, options), .decision = {}};
    start.decision = decide(start.found);
    if (start.decision.action == Action::refuse) {
        throw ConfigError(start.decision.refusal);
    }
    return start;
}

Begun begin(Trainer& trainer, const mpi::Communicator& world, const config::Run& run,
            const Start& start) {
    const Decision& decision = start.decision;
    const LeftBehind left(world, run, start);
    Begun begun{.lines = decision.notes, .checkpoint_step = decision.checkpoint_step};
    switch (decision.action) {
        case Action::start_anew:
            trainer.start([&] { left.remove(); });
            break;
        case Action::resume_state:
            resume(trainer, start, begun);
            break;
        case Action::load_checkpoint:
            load(trainer, start, begun);
            begun.lines.push_back(
                text("resumed from ", decision.checkpoint, " at step ", trainer.steps_done()));
            break;
        case Action::read_state:
            read_state(trainer, start, begun);
            break;
        case Action::refuse:
            throw ConfigError(decision.refusal);
    }
    if (decision.action != Action::start_anew) {
        left.remove();
    }
    const std::vector<std::string> removed = left.describe();
    begun.lines.insert(begun.lines.end(), removed.begin(), removed.end());
    if (decision.action != Action::start_anew && trainer.line().run != decision.line.run) {
        begun.lines.push_back(text("run ", trainer.line().run, " goes on from step ",
                                   trainer.steps_done(), " of run ", decision.line.run));
    }
    if (run.csd.durability != "step" && decision.action != Action::start_anew) {
        // The next update overwrites what no manifest will list.
        if (decision.action != Action::load_checkpoint &&
            decision.checkpoint_step != trainer.steps_done()) {
            begun.lines.push_back("checkpoint " + trainer.save(config::checkpoint_folder(run)));
            begun.checkpoint_step = trainer.steps_done();
        }
        trainer.forget_commits();
    }
    return begun;
}

}  // namespace nearstep::train
