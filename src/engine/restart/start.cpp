// Finds what a run begins with. Used by Run::open() and by the check of hosts.
#include "engine/restart/start.hpp"

#include "base/error.hpp"
#include "base/executor.hpp"
#include "base/stopwatch.hpp"
#include "base/wording.hpp"
#include "engine/placement/device_speeds.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/layout_line.hpp"
#include "engine/placement/spare_places.hpp"
#include "engine/placement/tier_shares.hpp"
#include "engine/restart/folder_search.hpp"
#include "engine/restart/state_search.hpp"
#include "mpi/topology.hpp"
#include "store/names.hpp"
#include "store/provenance.hpp"
#include "store/storage_folder.hpp"
#include "store/subgroup_header.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace nearstep::engine {

namespace {

// A rank's layout depends on the speeds, which may be those that an earlier run left.
void name_layouts(const mpi::Communicator& world, const PlacedSettings& settings, std::size_t elems,
                  Findings& found) {
    const mpi::Topology nodes = discover_nodes(world, settings);
    const shard::Ownership owners = make_ownership(settings, elems, nodes);
    for (int copy = 0; copy < owners.copies(); ++copy) {
        const std::string layout = layout_line(settings, world.size(), owners.copy(copy));
        for (const int rank : owners.copy(copy).ranks) {
            found.ranks[static_cast<std::size_t>(rank)].layout = layout;
        }
    }
}

// Whether a state goes on in place that differs from this run's layout in its places alone, such as
// one of version 0.2.0.
bool has_two_places(const Findings& found) {
    if (found.request.kind == StartRequest::Kind::none || found.request.is_fresh()) {
        return false;
    }
    const auto lacks_places = [&](const FoundManifest& one) {
        return one.manifest && !one.is_of_other_job && !one.manifest->commits.empty() &&
               std::ranges::any_of(found.ranks, [&](const RankPlaces& places) {
                   return without_spare_places(places.layout) == brief_layout(one.manifest->layout);
               });
    };
    return std::ranges::any_of(found.manifests, lacks_places);
}

// The logs that the rank will write.
std::vector<std::string> logs_of(const PlacedSettings& settings, const store::RankFiles& files) {
    std::vector<std::string> logs;
    for (std::size_t device = 0; device < files.states.size(); ++device) {
        std::ranges::move(log_files(settings, files.states[device], static_cast<int>(device)),
                          std::back_inserter(logs));
    }
    return logs;
}

Decision decide_or_throw(const Findings& found) {
    Decision decision = decide(found);
    if (decision.action == Action::refuse) {
        throw ConfigError(in_words(decision.refusal, found));
    }
    return decision;
}

}  // namespace

std::vector<double> known_speeds(const Findings& found, const std::vector<int>& devices) {
    if (found.request.kind == StartRequest::Kind::none || found.request.is_fresh()) {
        return {};
    }
    std::set<std::pair<int, std::string>> seats;  // node and path
    for (const RankPlaces& places : found.ranks) {
        for (const std::string& path : places.manifests) {
            seats.emplace(places.view(), path);
        }
    }
    const auto is_of_seat = [&](const FoundManifest& one) {
        return seats.count({one.node, one.path}) > 0;
    };
    std::int64_t newest = -2;
    std::string layout;
    for (const FoundManifest& one : found.manifests) {
        if (one.manifest && !one.is_of_other_job && is_of_seat(one)) {
            const std::vector<store::Commit>& commits = one.manifest->commits;
            const std::int64_t step = commits.empty() ? -1 : commits.front().step;
            if (step > newest) {
                newest = step;
                layout = one.manifest->layout;
            }
        }
    }
    const std::optional<LayoutValues> known = parse_layout(layout);
    return known && known->devices == devices ? known->speeds : std::vector<double>();
}

void refuse_logs_of_others(const PlacedSettings& settings, const mpi::Communicator& world, int set,
                           const Findings& found) {
    const store::RankFiles files = files_of_rank(settings, world, set);
    std::set<std::uint64_t> own = {0};
    for (const FoundManifest& one : found.manifests) {
        own.insert(one.manifest ? store::number_of_state(one.manifest->state) : 0);
    }
    for (const std::string& state : files.states) {  // whose manifest may be damaged
        own.insert(store::state_in(state));
    }
    for (const std::string& log : logs_of(settings, files)) {
        if (own.count(store::state_in(log)) == 0) {
            throw ConfigError(text("The log ", log, " is of a state that ", Term::path,
                                   " does not hold: of another run, or of one that went on from a "
                                   "checkpoint without it. Name another folder in ",
                                   Term::log, ", or remove the log if no run needs it."));
        }
    }
}

Start find_start(const mpi::Communicator& world, const config::EngineSettings& settings,
                 const Layout& layout, const StartRequest& request, const std::string& model,
                 const EngineOptions& options) {
    PlacedSettings placed = place_devices(world, settings, options.grant);
    resolve_gpu(world, placed, options);
    Stopwatch watch;
    Findings found = find_states(world, placed, model, request, options.program);
    share_cores(options.processes_beside *
                static_cast<int>(mpi::discover_nodes(world).ranks_beside(world.rank()).size()));
    double search_s = watch.lap();
    resolve_speeds(world, placed, layout,
                   known_speeds(found, config::devices_per_rank(placed, world.size())));
    resolve_places(world, placed, layout, options);
    watch.lap();
    name_layouts(world, placed, layout.elems, found);
    if (placed.spare_places > 0 && placed.logs == 1 && has_two_places(found)) {
        keep_two_places(placed);
        name_layouts(world, placed, layout.elems, found);
    }
    find_checkpoints(world, placed, options.steps_of, found);
    Decision decision = decide_or_throw(found);
    const bool fills_files = decision.action != Action::resume_state;
    if (fills_files || placed.logs > 1) {
        world.together([&] {
            if (fills_files) {
                store::RankFiles files = files_of_rank(placed, world, decision.set);
                std::ranges::move(logs_of(placed, files), std::back_inserter(files.states));
                store::refuse_foreign_files(files);
            }
            if (placed.logs > 1) {
                refuse_logs_of_others(placed, world, decision.set, found);
            }
        });
    }
    search_s += watch.lap();
    return {.settings = std::move(placed),
            .found = std::move(found),
            .decision = std::move(decision),
            .search_s = search_s};
}

void refuse_unfinished(const config::EngineSettings& settings, bool looks_at_checkpoints,
                       const StepsOf& steps_of) {
    decide_or_throw(search_here(settings, looks_at_checkpoints, steps_of));
}

}  // namespace nearstep::engine
