// Checks, removes and describes what a start leaves behind. Called by Run as it begins.
#include "engine/restart/old_files.hpp"

#include "base/error.hpp"
#include "base/executor.hpp"
#include "base/number_list.hpp"
#include "base/plain_file.hpp"
#include "base/wording.hpp"
#include "engine/placement/devices.hpp"
#include "engine/restart/state_search.hpp"
#include "store/manifest.hpp"
#include "store/provenance.hpp"
#include "store/storage_folder.hpp"
#include "store/subgroup_header.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace nearstep::engine {

OldFiles::OldFiles(const mpi::Communicator& world, const Start& start)
    : world_(world),
      found_(start.found),
      set_(start.decision.set),
      memory_(config::memory_folder(start.settings)),
      log_folders_(start.settings.csd.log),
      others_(state_files(start.settings, world.rank(), world.size(), 1 - set_)),
      view_(found_.ranks[static_cast<std::size_t>(world.rank())].view()),
      is_first_(is_first_of_node(world, found_)) {
    const PlacedSettings& settings = start.settings;
    for (const FoundManifest& one : found_.manifests) {
        if (is_first_ && one.node == view_) {
            mine_.push_back(&one);
        }
    }
    for (int rank = 0; rank < world.size(); ++rank) {
        const RankPlaces& places = found_.ranks[static_cast<std::size_t>(rank)];
        current_.insert({places.view(), places.manifests[static_cast<std::size_t>(set_)]});
        const std::vector<std::string>& files = places.files[static_cast<std::size_t>(set_)];
        files_.insert(files.begin(), files.end());
    }
    for (const FoundManifest& one : found_.manifests) {
        if (!is_left(one) && one.manifest) {
            states_.emplace(one.path, one.manifest->state);
        }
    }
    partial_ = manifest_path(settings, world.rank(), 1 - set_) + ".partial";
}

// A log whose state no manifest names would be another run's, so logs go before their manifest.
void OldFiles::remove(const std::string& state) const {
    world_.together([&] {
        for (const FoundManifest* one : mine_) {
            for (const std::string& file : removable_files(*one)) {
                store::remove_logs(file, log_folders_);
            }
        }
    });
    world_.together([&] {
        for (const FoundManifest* one : mine_) {
            if (is_left(*one) && !names(one->path, state)) {
                store::ManifestFile(one->path).remove();
            }
        }
    });
    world_.together([&] {
        std::vector<std::string> files;
        for (const FoundManifest* one : mine_) {
            for (std::string& file : removable_files(*one)) {
                files.push_back(std::move(file));
            }
        }
        // The kernel takes a second for each 7 GB of a file in memory.
        Executor workers(pool_threads() - 1);
        workers.share(files.size(),
                      [&](std::size_t i, int) { store::remove_state(files[i], log_folders_); });
        // In memory, no drive with their manifest can be missing.
        for (const FoundRemains& one : found_.remains) {
            if (is_first_ && one.node == view_ && files_.count(one.path) == 0 &&
                store::folder_of(one.path) == memory_ && is_own_plain(one.path)) {
                store::remove_state(one.path, log_folders_);
            }
        }
        if (is_first_ && store::is_private_folder(memory_)) {
            ::rmdir(memory_.c_str());  // fails unless it is empty
        }
        for (const std::string& file : others_) {
            if (store::is_removable_state(file, {})) {
                store::remove_state(file, log_folders_);
            }
        }
        if (store::is_removable_manifest(partial_)) {
            ::unlink(partial_.c_str());
        }
    });
}

void OldFiles::check() const {
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

std::vector<std::string> OldFiles::describe() const {
    std::vector<std::string> lines;
    std::size_t more = 0;
    for (const FoundManifest& one : found_.manifests) {
        if (is_left(one) && !is_seen_twice(one)) {
            if (lines.size() == kMostNamed) {
                ++more;
                continue;
            }
            lines.push_back(text("removed ", one.path, " and its state files",
                                 one.manifest && !one.manifest->commits.empty()
                                     ? text(" (step ", one.manifest->commits.front().step,
                                            " of run ", one.manifest->line.run, ")")
                                     : ""));
        }
    }
    if (more > 0) {
        lines.push_back(text("removed ", more, " more manifests and their state files"));
    }
    return lines;
}

// A manifest without a step may name files that were not emptied for it yet.
void OldFiles::check_files_of(const FoundManifest& one) const {
    if (!is_left(one) || !one.manifest || one.manifest->commits.empty()) {
        return;
    }
    for (const std::string& file : one.files) {
        const std::uint64_t state = store::state_in(file);
        if (state != 0 && state != store::number_of_state(one.manifest->state)) {
            throw ConfigError(text("The state file ", file, " belongs to another run than ",
                                   one.path,
                                   " beside it, with which this start would remove it: "
                                   "put that run's own file back, or move this one away."));
        }
    }
}

std::vector<std::string> OldFiles::removable_files(const FoundManifest& one) const {
    std::vector<std::string> removable;
    for (const std::string& file : one.files) {
        if (files_.count(file) == 0 && store::is_removable_state(file, one.files)) {
            removable.push_back(file);
        }
    }
    return removable;
}

// Several nodes may see one folder. Then a manifest that another node's rank has written since
// the search is not left behind.
bool OldFiles::names(const std::string& path, const std::string& state) const {
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
bool OldFiles::is_seen_twice(const FoundManifest& one) const {
    return one.manifest && states_.count({one.path, one.manifest->state}) > 0;
}

}  // namespace nearstep::engine
