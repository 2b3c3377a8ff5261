// Brings a run to the chosen starting point: fills the state, and lets the steps go on behind it.
// Called by Run::prepare() and Run::fill().
#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/log.hpp"
#include "base/number_list.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "engine/placement/device_speeds.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/site_links.hpp"
#include "engine/restart/job_record.hpp"
#include "engine/restart/state_search.hpp"
#include "engine/run_parts.hpp"
#include "mpi/gathered_text.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

namespace nearstep::engine {

namespace {

// Lines from `first` on say what is damaged, the newest step's first.
[[noreturn]] void refuse_damage(const Start& start, const BeginReport& begun, std::size_t first) {
    std::string detail;
    for (std::size_t line = first; line < begun.lines.size(); ++line) {
        detail += text(detail.empty() ? "" : " ", begun.lines[line]);
    }
    throw ConfigError(in_words({.reason = Reason::nothing_whole,
                                .remedies = {Remedy::from, Remedy::fresh},
                                .detail = detail},
                               start.found));
}

// Describes the state that a fresh start discards; empty if there is none.
std::string describe_overwritten(const mpi::Communicator& world, const PlacedSettings& settings,
                                 int set) {
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

// Names the ranks that have not written what they noted; see write_log_of(). Collective.
std::vector<std::string> describe_silent_events(const mpi::Communicator& world) {
    if (world.size() <= static_cast<int>(kMostNamed)) {
        return {};
    }
    std::map<std::string, std::vector<int>> ranks_of;
    const std::vector<std::string> of_ranks = mpi::gather_text(world, joined(silent_events(), " "));
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
        std::istringstream events(of_ranks[rank]);
        for (std::string event; events >> event;) {
            ranks_of[event].push_back(static_cast<int>(rank));
        }
    }
    std::vector<std::string> lines;
    lines.reserve(ranks_of.size());
    for (const auto& [event, ranks] : ranks_of) {
        lines.push_back(text("event ", event, " on ", name_ranks(ranks), ", without a line each"));
    }
    return lines;
}

// Appends those of the lines `more` that are not empty.
void add(std::vector<std::string>& lines, const std::vector<std::string>& more) {
    std::ranges::copy_if(more, std::back_inserter(lines),
                         [](const std::string& line) { return !line.empty(); });
}

}  // namespace

void Run::Parts::go_on_from(Origin origin) {
    threads_before = origin.writer.threads;
    step.go_on_at(origin.position, origin.writer.dtype);
    state.list_what_was_filled(std::move(origin.program), step.position());
}

std::string Run::Parts::save(const std::string& folder, std::span<const std::byte> program) {
    return state.save(folder, step.position(), program);
}

// Returns whether the state of that commit is used; else a line says why it is not.
bool Run::Parts::resume_at(std::size_t commit, BeginReport& begun) {
    const Decision& decision = start.decision;
    const bool is_in_place = decision.action == Action::resume_state;
    const std::int64_t at = decision.steps[commit].commit.step;
    ReadState read = is_in_place ? state.resume(commit) : state.move_in(commit);
    if (!read.origin) {
        begun.lines.push_back(text("The state of step ", at, " is not used. ", read.damage));
        return false;
    }
    go_on_from(*std::move(read.origin));
    begun.lines.push_back(text(
        "resumed from the state files ", is_in_place ? "" : "of another layout ", "at step ", at,
        read.repeated == 0
            ? ""
            : text(", with the updates of ", counted(static_cast<int>(read.repeated), "step"),
                   " from the logs, in ", three_digits(read.seconds), " s")));
    return true;
}

void Run::Parts::resume(BeginReport& begun) {
    const Decision& decision = start.decision;
    bool has_checkpoint = !decision.checkpoint.empty();
    const std::size_t first = begun.lines.size();
    for (std::size_t i = 0; i < decision.steps.size(); ++i) {
        if (resume_at(i, begun)) {
            return;
        }
        if (!has_checkpoint) {
            continue;
        }
        try {
            state.verify_checkpoint();
        } catch (const ConfigError& fault) {
            begun.lines.emplace_back(fault.what());
            has_checkpoint = false;
            continue;
        }
        go_on_from(state.load());
        begun.lines.push_back(text("resumed from ", decision.checkpoint, " at step ", step.done(),
                                   ", which is as new"));
        return;
    }
    if (decision.action == Action::read_state) {
        state.remove_files();
    }
    refuse_damage(start, begun, first);
}

// If no other state is kept, the files are emptied, so the checkpoint is verified before that.
void Run::Parts::load(BeginReport& begun) {
    const Decision& decision = start.decision;
    try {
        if (decision.replaces.empty()) {
            state.verify_checkpoint();
        }
        go_on_from(state.load());
    } catch (const ConfigError& damage) {
        begun.lines.emplace_back(damage.what());
        refuse_damage(start, begun, begun.lines.size() - 1);
    }
    begun.lines.push_back(text("resumed from ", decision.checkpoint, " at step ", step.done()));
}

void Run::Parts::act(const OldFiles& old, BeginReport& begun) {
    switch (start.decision.action) {
        case Action::start_anew:
            state.start_anew([&] { old.remove(state.id()); });
            break;
        case Action::resume_state:
        case Action::read_state:
            resume(begun);
            break;
        case Action::load_checkpoint:
            load(begun);
            break;
        case Action::refuse:
            throw ConfigError(in_words(start.decision.refusal, start.found));
    }
    state.replace_runs();
    const PlacedSettings& settings = resources.settings;
    const bool begins_anew = start.decision.action == Action::start_anew;
    const bool is_from_newest = start.decision.action == Action::load_checkpoint ||
                                start.decision.checkpoint_step == step.done();
    if (!resources.is_durable_by_step() && !begins_anew && !is_from_newest) {
        // The next update overwrites the state. What it was read from stays until then.
        begun.lines.push_back("checkpoint " +
                              save(config::checkpoint_folder(settings), state.kept_program()));
        begun.checkpoint_step = step.done();
    }
    if (!begins_anew) {
        old.remove(state.id());
    }
}

BeginReport Run::Parts::begin() {
    const Decision& decision = start.decision;
    const mpi::Communicator& world = resources.world;
    const PlacedSettings& settings = resources.settings;
    check_unchanged(world, settings, start.found);
    const OldFiles old(world, start);
    old.check();
    state.expect_own_programs();
    std::string drives;
    if (decision.action != Action::resume_state) {
        drives = state.expect_room();
    }
    state.claim_unchanged_files();
    const std::string overwritten =
        start.found.request.is_fresh() ? describe_overwritten(world, settings, decision.set) : "";
    BeginReport begun{.lines = describe_speeds(settings, resources.owners),
                      .checkpoint_step = decision.checkpoint_step};
    add(begun.lines, decision.notes);
    act(old, begun);
    add(begun.lines, old.describe());
    const bool begins_anew = decision.action == Action::start_anew;
    if (!begins_anew && state.line().run != decision.line.run) {
        begun.lines.push_back(text("run ", state.line().run, " goes on from step ", step.done(),
                                   " of run ", decision.line.run));
    }
    if (!begins_anew && !resources.is_durable_by_step()) {
        state.forget_commits();
    }
    for (const auto& device : resources.pipeline->devices()) {
        device->expect_updates();
    }
    add(begun.lines, {drives, describe_threads(threads_before, resources.threads), overwritten,
                      check_network(world, settings)});
    add(begun.lines, describe_silent_events(world));
    if (world.rank() == 0) {
        note_begun(settings.csd.path.front(), state.line().run);
    }
    step.count_from_here();
    return begun;
}

void Run::Parts::fill(const Fill& values, const Carried* carried) {
    state.write(values, carried);
    if (carried == nullptr) {
        resources.go_on_from(0);
        resources.pipeline->gather();
        state.commit(step.position());
    } else {
        go_on_from({.position = carried->position,
                    .writer = {},
                    .program = {.run = state.line().run,
                                .step = carried->position.step,
                                .bytes = carried->program,
                                .path = {}}});
        if (!resources.is_durable_by_step()) {
            state.forget_commits();
        }
    }
    step.count_from_here();
}

}  // namespace nearstep::engine
