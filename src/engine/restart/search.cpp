// Finds, with all ranks, what earlier runs left. Used by find_start() and when a run begins.
#include "engine/restart/search.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"
#include "engine/gathered_text.hpp"
#include "engine/placement/devices.hpp"
#include "engine/restart/folder_search.hpp"
#include "engine/restart/job_record.hpp"
#include "mpi/topology.hpp"
#include "store/folder.hpp"

#include <algorithm>
#include <iterator>
#include <vector>

namespace nearstep::engine {

bool is_first_of_node(const mpi::Communicator& world, const Found& found) {
    const auto rank = static_cast<std::size_t>(world.rank());
    return std::none_of(found.ranks.begin(), found.ranks.begin() + world.rank(),
                        [&](const Seat& seat) { return seat.node == found.ranks[rank].node; });
}

namespace {

std::string packed(const FoundManifest& one) {
    std::vector<std::string> parts = {one.path, std::to_string(one.rank), std::to_string(one.set),
                                      one.manifest ? store::print_manifest(*one.manifest) : "",
                                      one.damage};
    parts.insert(parts.end(), one.files.begin(), one.files.end());
    return pack(parts);
}

FoundManifest unpack_manifest(const std::string& text, int node) {
    std::vector<std::string> parts = unpack(text);
    FoundManifest one{.node = node,
                      .path = parts.at(0),
                      .rank = std::stoi(parts.at(1)),
                      .set = std::stoi(parts.at(2)),
                      .manifest = store::parse_manifest(parts.at(3)),
                      .damage = parts.at(4)};
    one.files.assign(parts.begin() + 5, parts.end());
    return one;
}

std::string packed(const FoundCheckpoint& one) {
    return pack(std::vector<std::string>{one.path, std::to_string(one.step),
                                         std::to_string(one.generation), std::to_string(one.steps),
                                         one.line.run, store::print_parents(one.line.parents),
                                         one.model, one.damage, pack(one.state_folders)});
}

FoundCheckpoint unpack_checkpoint(const std::string& text) {
    const std::vector<std::string> parts = unpack(text);
    return {.path = parts.at(0),
            .step = std::stoll(parts.at(1)),
            .generation = std::stoll(parts.at(2)),
            .steps = std::stoll(parts.at(3)),
            .line = {.run = parts.at(4),
                     .parents =
                         store::parse_parents(parts.at(5)).value_or(std::vector<store::Branch>())},
            .model = parts.at(6),
            .damage = parts.at(7),
            .state_folders = unpack(parts.at(8))};
}

std::string packed(const FoundRemains& one) {
    return pack(std::vector<std::string>{one.path, std::to_string(one.generation)});
}

template <typename Item>
std::string pack_all(const std::vector<Item>& items) {
    std::vector<std::string> parts;
    parts.reserve(items.size());
    for (const Item& item : items) {
        parts.push_back(packed(item));
    }
    return pack(parts);
}

// What this rank tells the others: its seat and, if it is its node's first, what the node sees.
std::string look_here(const Placed& settings, int rank, int ranks, bool is_first_of_node) {
    std::vector<FoundManifest> manifests;
    std::vector<FoundRemains> remains;
    if (is_first_of_node) {
        manifests = look_for_manifests(settings);
        remains = look_for_remains(settings, manifests);
    }
    return pack(std::vector<std::string>{
        own_host(), manifest_path(settings, rank, 0), manifest_path(settings, rank, 1),
        pack_all(manifests), pack_all(remains), pack(state_files(settings, rank, ranks, 0)),
        pack(state_files(settings, rank, ranks, 1))});
}

void look_at_state(const mpi::Communicator& world, const Placed& settings, Found& found) {
    const mpi::Topology machines = mpi::discover_nodes(world);
    std::string mine;
    world.together([&] {
        mine = look_here(settings, world.rank(), world.size(),
                         machines.rank_in_group(world.rank()) == 0);
    });
    found.hosts.resize(static_cast<std::size_t>(machines.groups()));
    for (const std::string& of_rank : gather_text(world, mine)) {
        const int node = machines.group_of[found.ranks.size()];
        const std::vector<std::string> parts = unpack(of_rank);
        found.hosts[static_cast<std::size_t>(node)] = parts.at(0);
        found.ranks.push_back({.node = node,
                               .manifests = {parts.at(1), parts.at(2)},
                               .files = {unpack(parts.at(5)), unpack(parts.at(6))}});
        for (const std::string& manifest : unpack(parts.at(3))) {
            found.manifests.push_back(unpack_manifest(manifest, node));
        }
        for (const std::string& one : unpack(parts.at(4))) {
            const std::vector<std::string> fields = unpack(one);
            found.remains.push_back(
                {.node = node, .path = fields.at(0), .generation = std::stoll(fields.at(1))});
        }
    }
}

// Rank 0 looks; all ranks get the same.
void look_at_checkpoints(const mpi::Communicator& world, const config::EngineSettings& settings,
                         const StepsOf& steps_of, Found& found) {
    std::string in_folder;
    std::string named;
    world.together([&] {
        if (world.rank() == 0) {
            const bool is_new = found.wish.kind == Wish::Kind::none;
            in_folder = pack_all(look_for_checkpoints(settings, is_new ? steps_of : StepsOf()));
            if (!found.wish.path.empty()) {
                named = packed(open_checkpoint(found.wish.path, {}));
            }
        }
    });
    for (const std::string& one : unpack(world.broadcast(in_folder, 0))) {
        found.checkpoints.push_back(unpack_checkpoint(one));
    }
    named = world.broadcast(named, 0);
    if (!named.empty()) {
        found.named = unpack_checkpoint(named);
    }
}

// Checks that no other process uses files that may be read or replaced.
void check_unused(const Placed& settings, int rank, int ranks) {
    for (int set = 0; set < kSets; ++set) {
        store::check_unused(state_files(settings, rank, ranks, set));
    }
}

std::vector<FoundManifest> manifests_of_node(const Found& found, int node) {
    std::vector<FoundManifest> out;
    std::ranges::copy_if(found.manifests, std::back_inserter(out),
                         [&](const FoundManifest& one) { return one.node == node; });
    return out;
}

void check_unused(const mpi::Communicator& world, const Found& found) {
    const int node = found.ranks[static_cast<std::size_t>(world.rank())].node;
    world.together([&] {
        if (!is_first_of_node(world, found)) {
            return;
        }
        for (const FoundManifest& one : manifests_of_node(found, node)) {
            std::vector<std::string> files = one.files;
            std::erase(files, "");
            store::check_unused(files);
        }
    });
}

// The run's checkpoint tells where its state was. If csd.path no longer names that folder, a newer
// step there must not be ignored.
void check_earlier_folders(const mpi::Communicator& world, const config::EngineSettings& settings,
                           const Found& found) {
    const auto checkpoint = std::ranges::find(found.checkpoints, "", &FoundCheckpoint::damage);
    if (!found.wish.resumes() || found.named || checkpoint == found.checkpoints.end()) {
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
        return std::find(named.begin(), named.end(), folder) != named.end();
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
                     const Found& found) {
    const int node = found.ranks[static_cast<std::size_t>(world.rank())].node;
    world.together([&] {
        const auto is_same = [](const FoundManifest& a, const FoundManifest& b) {
            return a.path == b.path && a.manifest == b.manifest && a.damage == b.damage;
        };
        if (is_first_of_node(world, found) &&
            !std::ranges::equal(look_for_manifests(settings), manifests_of_node(found, node),
                                is_same)) {
            throw IoError(text("Another job went on in ", settings.csd.path.front(),
                               " while this one began: nothing was changed; start again when that "
                               "job has ended."));
        }
    });
}

Found find_states(const mpi::Communicator& world, const Placed& settings, const std::string& model,
                  const Wish& wish) {
    world.together([&] {
        for (const std::string& folder : state_folders(settings)) {
            store::check_place(folder);
        }
        check_unused(settings, world.rank(), world.size());
    });
    Found found{.wish = wish,
                .model = model,
                .state_folder = settings.csd.path.front(),
                .memory_folder = config::is_used(settings.csd.tiers.memory)
                                     ? config::memory_folder(settings)
                                     : "",
                .checkpoint_folder = config::checkpoint_folder(settings)};
    const bool may_have = world.rank() == 0 && may_have_begun(settings.csd.path.front());
    found.may_have_begun = !world.agree(!may_have);
    look_at_state(world, settings, found);
    check_unused(world, found);
    return found;
}

void find_checkpoints(const mpi::Communicator& world, const config::EngineSettings& settings,
                      const StepsOf& steps_of, Found& found) {
    look_at_checkpoints(world, settings, steps_of, found);
    check_earlier_folders(world, settings, found);
}

}  // namespace nearstep::engine
