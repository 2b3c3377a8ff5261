#include "train/start.hpp"

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "config/load.hpp"
#include "csd/state_commit.hpp"
#include "model/geometry.hpp"
#include "store/folder.hpp"
#include "train/devices.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

namespace nearstep::train {

namespace {

[[noreturn]] void refuse_unfinished(const char* key, const std::string& folder, std::int64_t step,
                                    std::int64_t steps) {
    throw ConfigError(text("The folder ", folder, " holds a run that stopped at step ", step,
                           " of ", steps, ": go on with --resume, start anew with --fresh, or set ",
                           key, " to another folder."));
}

void refuse_unfinished_run(const mpi::Communicator& world, const config::Run& run) {
    world.together([&] { refuse_unfinished_state(run, world.rank()); });
    world.together([&] {
        if (world.rank() == 0) {
            refuse_unfinished_checkpoints(run);
        }
    });
}

// What keeps a rank from going on from its state files, as a sentence; empty: nothing.
std::string obstacle_in(const std::optional<store::Manifest>& manifest, const std::string& path,
                        const std::string& run_of_rank_0, const std::string& model,
                        const std::string& layout) {
    if (!manifest) {
        return text("there is no manifest ", path);
    }
    if (manifest->model != model) {
        return text("they are of another model (", manifest->model, ", not ", model, ")");
    }
    if (manifest->layout != layout) {
        return text("they have another layout (", manifest->layout, ", not ", layout, ")");
    }
    if (manifest->run != run_of_rank_0) {
        return text("those of rank 0 and those of ", path, " are of different runs");
    }
    return "";
}

// The lists of all ranks, in rank order.
std::vector<std::vector<store::Commit>> gather_commits(const mpi::Communicator& world,
                                                       const std::vector<store::Commit>& mine) {
    constexpr std::size_t kMost = 2;
    constexpr std::size_t kFields = 5;
    std::array<double, 1 + kMost * kFields> record{static_cast<double>(mine.size())};
    for (std::size_t i = 0; i < mine.size(); ++i) {
        const std::array<double, kFields> fields = {
            static_cast<double>(mine[i].step), static_cast<double>(mine[i].generation),
            mine[i].loss_scale, static_cast<double>(mine[i].good_steps), mine[i].norm};
        std::copy(fields.begin(), fields.end(), record.begin() + 1 + i * kFields);
    }
    const std::vector<double> records = world.all_gather(record);
    std::vector<std::vector<store::Commit>> all(static_cast<std::size_t>(world.size()));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const double* fields = &records[rank * record.size()];
        const auto count = static_cast<std::size_t>(*fields++);
        for (std::size_t i = 0; i < count; ++i, fields += kFields) {
            all[rank].push_back({.step = static_cast<std::int64_t>(fields[0]),
                                 .generation = static_cast<std::int64_t>(fields[1]),
                                 .loss_scale = fields[2],
                                 .good_steps = static_cast<std::int64_t>(fields[3]),
                                 .norm = fields[4]});
        }
    }
    return all;
}

// Fills in what the state files offer, or a note on why they are not used.
void look_at_state(const mpi::Communicator& world, const config::Run& run,
                   const data::Tokenizer& tokenizer, Start& start) {
    const std::string path = manifest_path(run, world.rank());
    std::optional<store::Manifest> manifest;
    std::string obstacle;
    try {
        manifest = csd::StateCommit(path).read();
    } catch (const IoError& damage) {
        obstacle = damage.what();
    }
    const bool is_nothing_there = world.agree(!manifest && obstacle.empty());
    if (is_nothing_there) {
        return;
    }
    const mpi::Topology nodes = mpi::discover_nodes(world, run.exchange.ranks_per_node);
    const std::string run_of_rank_0 = world.broadcast(manifest ? manifest->run : "", 0);
    if (obstacle.empty()) {
        const model::Geometry geometry = model::describe(run.model);
        obstacle = obstacle_in(
            manifest, path, run_of_rank_0, model_line(run.model, tokenizer),
            layout_line(run, world.size(),
                        make_ownership(run, geometry.elems, nodes).of_rank(world.rank())));
    }
    try {
        world.together([&] {
            if (!obstacle.empty()) {
                throw ConfigError(obstacle);
            }
        });
    } catch (const ConfigError& first) {
        start.notes.push_back(text("The state files in ", run.csd.path.front(),
                                   " are not used: ", first.what(), "."));
        return;
    }
    start.run = run_of_rank_0;
    start.commits = store::common_commits(gather_commits(world, manifest->commits));
}

// The run's newest checkpoint.
struct Newest {
    std::string path;  // empty: there is none
    std::int64_t step = -1;
    std::string others;  // what was passed over, as sentences
};

// Of the run that the state files are of; without state files of whichever run is the newest.
Newest look_for_checkpoint(const config::Run& run, const Start& start) {
    Newest newest;
    for (const std::string& path : checkpoint::find_all(config::checkpoint_folder(run))) {
        try {
            const auto reader = checkpoint::Reader::open(path);
            if (start.run.empty() || reader->description().run == start.run) {
                newest.path = path;
                newest.step = reader->description().step;
                break;
            }
            newest.others += text("The checkpoint ", path, " is of another run. ");
        } catch (const ConfigError& damage) {
            if (start.run.empty()) {
                throw;
            }
            newest.others += text(damage.what(), " ");
        }
    }
    return newest;
}

// The same on all ranks: what rank 0 finds.
Newest look_for_checkpoint(const mpi::Communicator& world, const config::Run& run,
                           const Start& start) {
    Newest newest;
    world.together([&] {
        if (world.rank() == 0) {
            newest = look_for_checkpoint(run, start);
        }
    });
    newest.path = world.broadcast(newest.path, 0);
    newest.others = world.broadcast(newest.others, 0);
    newest.step = std::stoll(world.broadcast(std::to_string(newest.step), 0));
    return newest;
}

void choose(const config::Run& run, const Newest& newest, bool may_start_anew, Start& start) {
    start.checkpoint = newest.path;
    start.checkpoint_step = newest.step;
    if (!newest.others.empty()) {
        start.notes.push_back(newest.others.substr(0, newest.others.size() - 1));
    }
    if (!start.commits.empty() && start.commits.front().step < newest.step) {
        start.notes.push_back(text("The state files hold step ", start.commits.front().step,
                                   ", older than the checkpoint ", newest.path, "."));
        start.commits.clear();
    }
    if (start.commits.empty() && start.checkpoint.empty() && !may_start_anew) {
        throw ConfigError(text("There is no checkpoint in ", config::checkpoint_folder(run),
                               " to resume from, and no state of a run in ", run.csd.path.front(),
                               ". ", start.notes.empty() ? "" : start.notes.front() + " ",
                               "Start without --resume, or set csd.path or checkpoint.path to its "
                               "folder."));
    }
}

}  // namespace

void refuse_unfinished_state(const config::Run& run, int rank) {
    const auto manifest = csd::StateCommit(manifest_path(run, rank)).read();
    if (manifest && !manifest->commits.empty()) {
        const std::int64_t step = manifest->commits.front().step;
        if (step > 0 && step < manifest->steps) {
            refuse_unfinished("csd.path", run.csd.path.front(), step, manifest->steps);
        }
    }
}

void refuse_unfinished_checkpoints(const config::Run& run) {
    const auto newest = checkpoint::find_newest(config::checkpoint_folder(run));
    if (!newest) {
        return;
    }
    const auto reader = checkpoint::Reader::open(*newest);
    const checkpoint::Description& description = reader->description();
    const config::Run earlier =
        config::parse({.config_path = *newest, .config_text = description.config});
    if (description.step < earlier.train.steps) {
        refuse_unfinished("checkpoint.path", config::checkpoint_folder(run), description.step,
                          earlier.train.steps);
    }
}

Start find_start(const mpi::Communicator& world, const config::Run& run,
                 const data::Tokenizer& tokenizer, const RunOptions& options) {
    world.together([&] { store::check_unused(state_files(run, world.rank(), world.size())); });
    Start start{.is_resuming = options.is_resuming || !options.resume_from.empty()};
    if (!options.resume_from.empty()) {
        start.checkpoint = options.resume_from;
    } else if (options.is_resuming) {
        look_at_state(world, run, tokenizer, start);
        choose(run, look_for_checkpoint(world, run, start), options.may_start_anew, start);
        start.is_resuming = !start.commits.empty() || !start.checkpoint.empty();
    } else if (!options.is_fresh) {
        refuse_unfinished_run(world, run);
    }
    return start;
}

std::vector<std::string> begin(Trainer& trainer, const Start& start) {
    std::vector<std::string> lines = start.notes;
    for (const store::Commit& commit : start.commits) {
        const std::optional<std::string> fault = trainer.restore_state(start.run, commit);
        if (!fault) {
            lines.push_back(text("resumed from the state files at step ", commit.step));
            return lines;
        }
        lines.push_back(text("The state of step ", commit.step, " is not used. ", *fault));
    }
    if (!start.checkpoint.empty()) {
        trainer.restore(start.checkpoint);
        lines.push_back(text("resumed from ", start.checkpoint, " at step ", trainer.steps_done()));
    } else if (start.is_resuming) {
        throw ConfigError(text("There is nothing whole to resume from. ", lines.back(),
                               " Go on from another checkpoint with --from, or start anew with "
                               "--fresh."));
    } else {
        trainer.start();
    }
    return lines;
}

}  // namespace nearstep::train
