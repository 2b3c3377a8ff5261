// Finds what one host sees of earlier runs. Used by the search of all ranks and the check of hosts.
#include "engine/restart/folder_search.hpp"

#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/log.hpp"
#include "base/machine.hpp"
#include "base/number_list.hpp"
#include "base/wording.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/newest.hpp"
#include "checkpoint/owner.hpp"
#include "config/load.hpp"
#include "engine/placement/layout_line.hpp"
#include "store/manifest.hpp"
#include "store/names.hpp"
#include "store/storage_folder.hpp"
#include "store/subgroup_header.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

namespace nearstep::engine {

namespace {

std::vector<std::string> names_of_files(const LayoutValues& layout, store::RankFileName of) {
    const int devices = layout.devices[static_cast<std::size_t>(of.rank)];
    std::vector<std::string> names;
    names.reserve(static_cast<std::size_t>(devices));
    for (int device = 0; device < devices; ++device) {
        names.push_back(store::state_file_name(of.rank, device, of.set));
    }
    return names;
}

// Returns, as a phrase, what is wrong with a manifest of this name; empty if a run may have written
// it. Anybody may have written the file. A manifest of an older format does not list its state
// files: this function adds the list.
std::string fault_of(store::Manifest& manifest, store::RankFileName name) {
    const std::optional<LayoutValues> layout = parse_layout(manifest.layout);
    if (!layout) {
        return "no run has its layout";
    }
    if (name.rank >= layout->ranks) {
        return text("its run had ", layout->ranks, " ranks");
    }
    std::vector<std::string> files = names_of_files(*layout, name);
    if (!manifest.files.empty() && manifest.files != files) {
        return "it names files that are not the rank's state files";
    }
    const std::vector<NumberRange>& copy = manifest.copy;
    const auto holds = [&](const NumberRange& range) {
        return range.first <= name.rank && name.rank <= range.last;
    };
    if (!copy.empty() && (copy.back().last >= layout->ranks || std::ranges::none_of(copy, holds))) {
        return "it names ranks that cannot hold a copy";
    }
    if (!manifest.places.empty() && manifest.places.rbegin()->first >= layout->ranks) {
        return text("it has the place of rank ", manifest.places.rbegin()->first,
                    ", and its run had ", layout->ranks, " ranks");
    }
    manifest.files = std::move(files);
    return "";
}

// Gives what an older version wrote the form that this one writes, so that equal values are equal
// texts, and short ones.
void write_briefly(store::Manifest& manifest, int rank) {
    manifest.layout = brief_layout(manifest.layout);
    manifest.threads = brief_list(manifest.threads);
    std::map<int, std::string> places;
    for (const int other : store::ranks_placed_by(rank, ranks_of_layout(manifest.layout))) {
        if (const auto place = manifest.places.find(other); place != manifest.places.end()) {
            places.insert(*place);
        }
    }
    manifest.places = std::move(places);
}

namespace fs = std::filesystem;

// Each folder of csd.path once, in its order.
std::vector<std::string> named_folders(const config::EngineSettings& settings) {
    std::vector<std::string> folders;
    for (const std::string& folder : settings.csd.path) {
        if (std::ranges::find(folders, folder) == folders.end()) {
            folders.push_back(folder);
        }
    }
    return folders;
}

bool is_plain(const std::string& path) {
    std::error_code ignored;
    return fs::is_regular_file(fs::symlink_status(path, ignored));
}

// Where the files that a manifest names lie; the manifest's own folder wins.
std::vector<std::string> places_of_files(const std::vector<std::string>& folders,
                                         const std::string& beside,
                                         const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) {
        std::string found;
        for (const std::string& folder : folders) {
            const std::string path = text(folder, "/", name);
            if ((found.empty() || folder == beside) && is_present(path) && is_plain(path)) {
                found = path;
            }
        }
        paths.push_back(found);
    }
    return paths;
}

FoundManifest read_manifest(const std::string& path, store::RankFileName name,
                            const std::vector<std::string>& folders) {
    struct stat facts {};
    ::stat(path.c_str(), &facts);  // without the file, its inode is 0
    FoundManifest found{.path = path, .inode = facts.st_ino, .rank = name.rank, .set = name.set};
    try {
        const store::ManifestFile file(path);
        std::optional<store::Manifest> manifest = file.read();
        const std::string fault = manifest ? fault_of(*manifest, name) : "";
        if (!fault.empty()) {
            file.report_damage(fault);
        }
        if (manifest) {
            write_briefly(*manifest, name.rank);
        }
        found.manifest = std::move(manifest);
    } catch (const NewerVersionError& newer) {
        found.damage = newer.what();
        found.is_of_newer_version = true;
    } catch (const DamageError& damage) {
        found.damage = damage.what();
    }
    if (found.manifest) {
        found.files = places_of_files(folders, store::folder_of(path), found.manifest->files);
    }
    return found;
}

}  // namespace

std::vector<std::string> state_folders(const config::EngineSettings& settings) {
    std::vector<std::string> folders = named_folders(settings);
    const std::string memory = config::memory_folder(settings);
    if (store::is_private_folder(memory)) {
        folders.push_back(memory);
    }
    return folders;
}

std::vector<FoundManifest> look_for_manifests(const std::vector<std::string>& named,
                                              const std::vector<std::string>& folders) {
    std::vector<FoundManifest> manifests;
    for (const std::string& folder : named) {
        std::error_code error;
        for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
             entry.increment(error)) {
            if (const auto name = store::parse_manifest_name(entry->path().filename().string())) {
                manifests.push_back(read_manifest(
                    text(folder, "/", entry->path().filename().string()), *name, folders));
            }
        }
        if (error && error != std::errc::no_such_file_or_directory &&
            error != std::errc::not_a_directory) {
            throw_path_error(text("Cannot list the folder ", folder, " of ", Term::path),
                             error.value(),
                             "choose a folder that you may read, or change its permissions.");
        }
    }
    sort_by_rank(manifests);
    return manifests;
}

void sort_by_rank(std::vector<FoundManifest>& manifests) {
    std::ranges::sort(manifests, {}, [](const FoundManifest& one) {
        return std::tie(one.rank, one.set, one.path);
    });
}

std::vector<FoundRemains> look_for_remains(const config::EngineSettings& settings,
                                           const std::vector<FoundManifest>& manifests) {
    std::set<std::string> named;
    for (const FoundManifest& one : manifests) {
        named.insert(one.files.begin(), one.files.end());
    }
    std::vector<FoundRemains> remains;
    for (const std::string& folder : state_folders(settings)) {
        std::error_code error;
        for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
            const std::string name = entry.path().filename().string();
            const std::string path = text(folder, "/", name);
            const auto parsed = store::parse_state_file_name(name);
            if (!parsed || named.count(path) > 0 || !is_plain(path)) {
                continue;
            }
            // The second set of names is used only beside a state that lists a step, which may be
            // out of reach, even if nothing has been written under them yet.
            const std::int64_t least = parsed->set == 1 ? 1 : 0;
            std::int64_t generation = std::max(least, store::newest_generation_in(path));
            // A step is in a log before it is in the state.
            const std::uint64_t state = store::state_in(path);
            for (const std::string& log : store::logs_of_state(path, settings.csd.log)) {
                if (store::state_in(log) == state) {
                    generation = std::max(generation, store::newest_generation_in(log));
                }
            }
            if (generation > 0) {
                remains.push_back({.path = path, .generation = generation});
            }
        }
    }
    return remains;
}

void look_for_programs(const config::EngineSettings& settings,
                       std::vector<FoundManifest>& manifests) {
    const std::vector<std::string> folders = named_folders(settings);
    for (FoundManifest& one : manifests) {
        if (!one.manifest || one.manifest->programs.empty()) {
            continue;
        }
        one.programs.resize(one.manifest->programs.size());
        for (const std::string& path : store::program_state_files(folders, one.rank)) {
            const auto kept = store::read_program_state(path);
            for (std::size_t i = 0; i < one.programs.size() && kept; ++i) {
                if (store::record_of(*kept) == one.manifest->programs[i]) {
                    one.programs[i] = path;
                }
            }
        }
    }
}

FoundCheckpoint open_checkpoint(const std::string& path, const StepsOf& steps_of,
                                ProgramUse program) {
    FoundCheckpoint found{.path = path};
    const auto reader = checkpoint::Reader::open(path);
    const checkpoint::Description& description = reader->description();
    found.step = description.step;
    found.generation = description.generation;
    found.line = static_cast<const store::Lineage&>(description);
    found.model = description.model;
    found.state_folders = config::state_folders_of(path, description.config);
    if (program == ProgramUse::needed) {
        for (std::size_t rank = 0; rank < description.programs.size(); ++rank) {
            reader->program(static_cast<int>(rank));
        }
    }
    if (steps_of) {
        found.steps = steps_of(path, description.config);
    }
    return found;
}

namespace {

// A run's rank 0 leaves its record where its devices are, which may be any folder of csd.path.
std::vector<checkpoint::Newest> records_of_newest(const config::EngineSettings& settings) {
    std::vector<checkpoint::Newest> records;
    for (const std::string& place : named_folders(settings)) {
        if (auto newest = checkpoint::read_newest(place)) {
            records.push_back(std::move(*newest));
        }
    }
    return records;
}

void add_recorded(const checkpoint::Newest& newest, std::vector<std::string>& paths) {
    const std::string recorded = text(newest.folder, "/", checkpoint::index_name(newest.step));
    std::error_code ignored;
    const auto is_recorded = [&](const std::string& path) {
        return fs::equivalent(path, recorded, ignored);
    };
    if (std::ranges::any_of(paths, is_recorded)) {
        return;
    }
    if (is_present(recorded)) {
        const auto older = [&](const std::string& path) {
            return checkpoint::step_of_index(path) < newest.step;
        };
        paths.insert(std::ranges::find_if(paths, older), recorded);
    } else {
        log_event("newest_checkpoint_missing",
                  {{"step", std::to_string(newest.step)}, {"run", newest.run}, {"file", recorded}});
    }
}

// Whether a checkpoint of `run` that cannot be read is not one of this run's, as far as that is
// known. A crash may have left a checkpoint of this run that is newer than the record.
bool is_of_others(const std::string& path, const std::string& run,
                  const std::vector<checkpoint::Newest>& records) {
    if (!records.empty()) {
        return std::ranges::all_of(records, [&](const checkpoint::Newest& newest) {
            return run != newest.run && checkpoint::step_of_index(path) > newest.step;
        });
    }
    struct stat facts {};
    return ::access(path.c_str(), R_OK) != 0 && ::stat(path.c_str(), &facts) == 0 &&
           facts.st_uid != ::geteuid();
}

}  // namespace

std::vector<FoundCheckpoint> look_for_checkpoints(const config::EngineSettings& settings,
                                                  const StepsOf& steps_of, ProgramUse program) {
    // The folder may hold checkpoints of other runs. A record names one of this run's.
    const std::vector<checkpoint::Newest> records = records_of_newest(settings);
    std::vector<std::string> paths = checkpoint::find_all(config::checkpoint_folder(settings));
    for (const checkpoint::Newest& newest : records) {
        add_recorded(newest, paths);
    }
    std::vector<FoundCheckpoint> checkpoints;
    for (const std::string& path : paths) {
        try {
            checkpoints.push_back(open_checkpoint(path, steps_of, program));
        } catch (const ConfigError& damage) {
            if (!is_present(path)) {
                continue;  // another run has removed its old checkpoint meanwhile
            }
            std::string run = checkpoint::run_of_damaged(path);
            if (is_of_others(path, run, records)) {
                log_event("damaged_checkpoint_of_others", {{"file", path}});
                continue;
            }
            checkpoints.push_back({.path = path,
                                   .step = checkpoint::step_of_index(path),
                                   .line = {.run = std::move(run)},
                                   .damage = damage.what()});
        }
    }
    return checkpoints;
}

std::vector<FoundManifest> look_for_manifests(const config::EngineSettings& settings) {
    return look_for_manifests(named_folders(settings), state_folders(settings));
}

Findings search_here(const config::EngineSettings& settings, bool looks_at_checkpoints,
                     const StepsOf& steps_of) {
    Findings found{.hosts = {own_host()}, .manifests = look_for_manifests(settings)};
    found.remains = look_for_remains(settings, found.manifests);
    found.checkpoint_folder = config::checkpoint_folder(settings);
    if (looks_at_checkpoints) {
        found.checkpoints = look_for_checkpoints(settings, steps_of);
    }
    return found;
}

}  // namespace nearstep::engine
