// Finds, with all ranks, what earlier runs left. Used by find_start() and when a run begins.
#include "engine/restart/state_search.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/packed.hpp"
#include "engine/placement/devices.hpp"
#include "engine/restart/choices.hpp"
#include "engine/restart/folder_search.hpp"
#include "engine/restart/shared_findings.hpp"
#include "mpi/gathered_text.hpp"
#include "mpi/lost_hosts.hpp"
#include "mpi/topology.hpp"
#include "store/storage_folder.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace nearstep::engine {

template <typename Archive>
void list(Archive& archive, JobRuns& one) {
    archive(one.may_have_begun, one.ids);
}

template <typename Archive>
void list(Archive& archive, FoundCheckpoint& one) {
    archive(one.path, one.step, one.generation, one.steps, one.line, one.model, one.damage,
            one.state_folders);
}

bool is_first_of_node(const mpi::Communicator& world, const Findings& found) {
    const auto rank = static_cast<std::size_t>(world.rank());
    return std::none_of(
        found.ranks.begin(), found.ranks.begin() + world.rank(),
        [&](const RankPlaces& places) { return places.node == found.ranks[rank].node; });
}

namespace {

// Returns what this rank sees. The first rank of a node looks for all of its node.
SeenByRank look_here(const PlacedSettings& settings, int rank, int ranks, bool is_first_of_node,
                     ProgramUse program) {
    SeenByRank seen;
    for (int set = 0; set < kSets; ++set) {
        const auto at = static_cast<std::size_t>(set);
        seen.places.manifests.at(at) = manifest_path(settings, rank, set);
        seen.places.files.at(at) = state_files(settings, rank, ranks, set);
    }
    if (is_first_of_node) {
        seen.manifests = look_for_manifests(settings);
        seen.remains = look_for_remains(settings, seen.manifests);
        if (program != ProgramUse::none) {
            look_for_programs(settings, seen.manifests);
        }
    }
    return seen;
}

// Whether a state has fewer manifests than ranks wrote it. Only then it matters where they were.
bool lacks_manifests(const Findings& found) {
    std::map<std::string, std::set<int>> ranks_of;
    std::map<std::string, int> wanted;
    for (const FoundManifest& one : found.manifests) {
        if (one.manifest) {
            ranks_of[one.manifest->state].insert(one.rank);
            int& ranks = wanted[one.manifest->state];
            ranks = std::max(ranks, ranks_of_layout(one.manifest->layout));
        }
    }
    return std::ranges::any_of(wanted, [&](const auto& one) {
        return static_cast<int>(ranks_of[one.first].size()) < one.second;
    });
}

// Most ranks see the same. Equal texts are sent once, and those that differ only if they matter.
void look_at_state(const mpi::Communicator& world, const PlacedSettings& settings,
                   Findings& found) {
    const mpi::Topology machines = mpi::discover_nodes(world);
    const int me = world.rank();
    const bool is_first = machines.rank_in_group(me) == 0;
    SeenByRank mine;
    RankTexts texts;
    world.together([&] {
        mine = look_here(settings, me, world.size(), is_first, found.program);
        texts = texts_of(mine, me, machines.ranks_beside(me));
    });
    const std::vector<std::string> hosts = gather_text(world, is_first ? own_host() : "");
    const std::vector<std::string> places = gather_text(world, texts.places);
    const std::vector<std::string> seen = gather_text(world, texts.seen);
    found.hosts.resize(static_cast<std::size_t>(machines.groups()));
    for (std::size_t rank = 0; rank < seen.size(); ++rank) {
        if (!hosts[rank].empty()) {
            found.hosts[static_cast<std::size_t>(machines.group_of[rank])] = hosts[rank];
        }
    }
    mpi::note_hosts(found.hosts);
    add_ranks(found, machines.group_of, places, seen);
    if (found.program != ProgramUse::none) {
        add_programs(found, gather_text(world, texts.programs));
    }
    if (lacks_manifests(found)) {
        add_manifest_places(found, gather_text(world, texts.manifest_places));
    }
    if (is_first) {
        keep_own(found, me, std::move(mine.manifests));
    }
}

// A job that Slurm starts again goes on with its own runs, wherever it is. A damaged checkpoint may
// not tell its run.
bool is_of_other_job(const Findings& found, const store::Lineage& line) {
    return !found.job.ids.empty() && !line.run.empty() &&
           std::ranges::find(found.job.ids, line.run) == found.job.ids.end();
}

// Rank 0 looks; all ranks get the same.
void look_at_checkpoints(const mpi::Communicator& world, const config::EngineSettings& settings,
                         const StepsOf& steps_of, Findings& found) {
    std::string seen;
    world.together([&] {
        if (world.rank() == 0) {
            const bool is_new = found.request.kind == StartRequest::Kind::none;
            found.checkpoints =
                look_for_checkpoints(settings, is_new ? steps_of : StepsOf(), found.program);
            if (!found.request.path.empty()) {
                found.named = open_checkpoint(found.request.path, {}, found.program);
            }
            seen = packed(found.checkpoints, found.named);
        }
    });
    unpack(world.broadcast(seen, 0), found.checkpoints, found.named);
}

// Checks that no other process uses files that may be read or replaced.
void check_unused(const PlacedSettings& settings, int rank, int ranks) {
    for (int set = 0; set < kSets; ++set) {
        store::check_unused(state_files(settings, rank, ranks, set));
    }
}

std::vector<FoundManifest> manifests_seen_by(const Findings& found, int rank) {
    const int view = found.ranks[static_cast<std::size_t>(rank)].view();
    std::vector<FoundManifest> out;
    std::ranges::copy_if(found.manifests, std::back_inserter(out),
                         [&](const FoundManifest& one) { return one.node == view; });
    return out;
}

// The strictest use of any rank.
ProgramUse program_on_all(const mpi::Communicator& world, ProgramUse mine) {
    const bool has_none = world.agree(mine == ProgramUse::none);
    const bool needs_none = world.agree(mine != ProgramUse::needed);
    return has_none ? ProgramUse::none : needs_none ? ProgramUse::optional : ProgramUse::needed;
}

void check_unused(const mpi::Communicator& world, const Findings& found) {
    world.together([&] {
        if (!is_first_of_node(world, found)) {
            return;
        }
        for (const FoundManifest& one : manifests_seen_by(found, world.rank())) {
            std::vector<std::string> files = one.files;
            std::erase(files, "");
            store::check_unused(files);
        }
    });
}

// The run's checkpoint tells where its state was. If csd.path no longer names that folder, a newer
// step there must not be ignored.
void check_earlier_folders(const mpi::Communicator& world, const config::EngineSettings& settings,
                           const Findings& found) {
    const std::optional<Choices> choices = look(found);
    const FoundCheckpoint* checkpoint = choices ? choices->checkpoint : nullptr;
    if (!found.request.resumes() || found.named || checkpoint == nullptr) {
        return;
    }
    const auto newest = [&](const FoundManifest& one) {
        const bool counts = one.manifest && one.manifest->line.run == checkpoint->line.run &&
                            !one.manifest->commits.empty();
        return counts ? one.manifest->commits.front().step : -1;
    };
    std::int64_t known = checkpoint->step;
    for (const FoundManifest& one : found.manifests) {
        known = std::max(known, newest(one));
    }
    std::vector<std::string> folders = checkpoint->state_folders;
    const std::vector<std::string> named = state_folders(settings);
    std::erase_if(folders, [&](const std::string& folder) {
        return std::ranges::find(named, folder) != named.end();
    });
    world.together([&] {
        std::vector<FoundManifest> there;
        try {
            there = look_for_manifests(folders, folders);
        } catch (const IoError&) {
            return;  // a drive that failed is a reason to leave it out
        }
        for (const FoundManifest& one : there) {
            if (newest(one) > known) {
                throw ConfigError(
                    in_words({.reason = Reason::step_elsewhere,
                              .remedies = {Remedy::name_folder, Remedy::from, Remedy::fresh},
                              .step = newest(one),
                              .run = checkpoint->line.run,
                              .place = store::folder_of(one.path),
                              .host = own_host(),
                              .checkpoint = checkpoint->path},
                             found));
            }
        }
    });
}

}  // namespace

void check_unchanged(const mpi::Communicator& world, const config::EngineSettings& settings,
                     const Findings& found) {
    world.together([&] {
        const auto is_same = [](const FoundManifest& a, const FoundManifest& b) {
            return a.path == b.path && a.manifest == b.manifest && a.damage == b.damage;
        };
        if (is_first_of_node(world, found) &&
            !std::ranges::equal(look_for_manifests(settings),
                                manifests_seen_by(found, world.rank()), is_same)) {
            throw IoError(text("Another job went on in ", settings.csd.path.front(),
                               " while this one began: nothing was changed; start again when that "
                               "job has ended."));
        }
    });
}

Findings find_states(const mpi::Communicator& world, const PlacedSettings& settings,
                     const std::string& model, const StartRequest& request, ProgramUse program) {
    world.together([&] {
        for (const std::string& folder : state_folders(settings)) {
            store::check_place(folder);
        }
        check_unused(settings, world.rank(), world.size());
    });
    Findings found{.request = request,
                   .model = model,
                   .state_folder = settings.csd.path.front(),
                   .memory_folder = config::is_used(settings.csd.tiers.memory)
                                        ? config::memory_folder(settings)
                                        : "",
                   .checkpoint_folder = config::checkpoint_folder(settings)};
    const std::string job =
        world.rank() == 0 ? packed(runs_of_job(settings.csd.path.front())) : std::string();
    unpack(world.broadcast(job, 0), found.job);
    found.computing = config::computing_ranks(settings, world.size());
    found.program = program_on_all(world, program);
    look_at_state(world, settings, found);
    for (FoundManifest& one : found.manifests) {
        one.is_of_other_job = one.manifest && is_of_other_job(found, one.manifest->line);
    }
    check_unused(world, found);
    return found;
}

void find_checkpoints(const mpi::Communicator& world, const config::EngineSettings& settings,
                      const StepsOf& steps_of, Findings& found) {
    look_at_checkpoints(world, settings, steps_of, found);
    for (FoundCheckpoint& one : found.checkpoints) {
        one.is_of_other_job = is_of_other_job(found, one.line);
    }
    check_earlier_folders(world, settings, found);
}

}  // namespace nearstep::engine
