// Claims, empties and removes the state files of a run, and lists in their manifests what they
// hold. Called by Run and, while it fills them, by State.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/packed.hpp"
#include "base/stopwatch.hpp"
#include "checkpoint/owner.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/layout_line.hpp"
#include "engine/placement/spare_places.hpp"
#include "engine/placement/tier_shares.hpp"
#include "engine/restart/state_search.hpp"
#include "engine/state/kept_program.hpp"
#include "engine/state/state.hpp"
#include "engine/state/state_drives.hpp"
#include "mpi/gathered_text.hpp"
#include "store/storage_folder.hpp"
#include "store/subgroup_header.hpp"

#include <random>
#include <utility>

namespace nearstep::store {

template <typename Archive>
void list(Archive& archive, PlannedFile& one) {
    archive(one.path, one.bytes, one.step_bytes, one.key);
}

}  // namespace nearstep::store

namespace nearstep::engine {

namespace {

std::string name_of_file(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

// A random id, different for every run and the same on all ranks.
std::string State::draw_id() const {
    std::random_device source;
    const std::uint64_t high = source();
    return resources_.world.broadcast(to_hex(high << 32U | source()), 0);
}

// The files, too, carry it from here on.
void State::name(const std::string& id) {
    id_ = id;
    for (const auto& device : resources_.pipeline->devices()) {
        device->belong_to(store::number_of_state(id));
    }
}

store::Manifest State::manifest() const {
    store::Manifest manifest{
        .line = line_,
        .model = resources_.identity.model,
        .layout = layout_line(resources_.settings, resources_.world.size(), resources_.copy),
        .seed = resources_.identity.seed,
        .data = resources_.identity.data,
        .dtype = name_of(resources_.layout.dtype),
        .threads = resources_.threads,
        .steps = resources_.identity.steps,
        .state = id_,
        .replaces = replaced_,
        .copy = resources_.owners.copies() > 1 ? ranges_of(resources_.copy.ranks)
                                               : std::vector<NumberRange>(),
        .places = resources_.places};
    for (const std::string& file : state_files(resources_.settings, resources_.world.rank(),
                                               resources_.world.size(), resources_.set)) {
        manifest.files.push_back(name_of_file(file));
    }
    return manifest;
}

void State::expect_own_programs() const {
    if (resources_.options.program != ProgramUse::none) {
        resources_.world.together([this] { resources_.log.expect_own_programs(); });
    }
}

// Each device has looked whether its own files fit. The files of a node's devices may lie on one
// drive.
std::string State::expect_room() const {
    const mpi::Communicator& world = resources_.world;
    const mpi::Communicator node =
        world.split(resources_.nodes.group_of[static_cast<std::size_t>(world.rank())]);
    std::vector<store::PlannedFile> of_node;
    for (const std::string& of_rank :
         gather_text(node, packed(planned_files(resources_.settings, world.rank(), world.size(),
                                                resources_.copy, resources_.set)))) {
        std::vector<store::PlannedFile> files;
        unpack(of_rank, files);
        of_node.insert(of_node.end(), files.begin(), files.end());
    }
    std::string line;
    world.together([&] {
        store::check_folders(of_node);
        const std::vector<DriveUse> uses = drive_uses(of_node);
        expect_choice_of_root(uses, resources_.settings.csd);
        line = describe_drives(uses, resources_.settings.csd);
        if (resources_.settings.logs > 1) {
            line +=
                text("; ", csd::describe(largest_logged(resources_.settings, resources_.owners)));
        }
    });
    return line;
}

void State::claim_files() {
    resources_.world.together([this] {
        std::vector<std::string> files = state_files(resources_.settings, resources_.world.rank(),
                                                     resources_.world.size(), resources_.set);
        for (const store::PlannedFile& file :
             planned_files(resources_.settings, resources_.world.rank(), resources_.world.size(),
                           resources_.copy, resources_.set)) {
            files.push_back(file.path);  // logs, too
        }
        files.push_back(
            manifest_path(resources_.settings, resources_.world.rank(), resources_.set));
        const std::vector<std::string> missing = store::missing_folders(files);
        new_folders_.insert(new_folders_.end(), missing.begin(), missing.end());
        make_memory_folder(resources_.settings);
        store::make_writable_folder(store::folder_of(files.back()));
        for (const auto& device : resources_.pipeline->devices()) {
            device->claim();
        }
    });
}

// Claims files that were not there before it checks that no other run went on.
void State::claim_unchanged_files() {
    const bool claims = start_.decision.action != Action::resume_state;
    if (claims) {
        claim_files();
    }
    try {
        if (claims) {
            check_unchanged(resources_.world, resources_.settings, start_.found);
        }
        if (resources_.settings.logs > 1) {
            resources_.world.together([this] {
                refuse_logs_of_others(resources_.settings, resources_.world, resources_.set,
                                      start_.found);
            });
        }
    } catch (const Error&) {  // on all ranks alike
        if (claims) {
            withdraw();
        }
        throw;
    }
}

void State::withdraw() {
    resources_.world.together([this] {
        for (const auto& device : resources_.pipeline->devices()) {
            device->withdraw();
        }
        resources_.log.withdraw();
    });
    resources_.world.together([this] { store::remove_empty_folders(new_folders_); });
}

// Before files are emptied, all manifests claim them and list no step. If an older state must stay
// until the new one is durable, manifests do not name the new files yet.
void State::empty_files(const std::string& replaced, const Claimed& claimed) {
    claim_files();
    name(draw_id());
    replaced_ = replaced;
    resources_.log.begin(manifest());
    if (replaced.empty()) {
        resources_.world.together([this] { resources_.log.claim(); });
    }
    if (claimed) {
        claimed();
    }
    // Memory is cleared as it is reserved, which takes one thread longer than the rest of a start.
    const auto& devices = resources_.pipeline->devices();
    resources_.world.together([&] {
        resources_.pool.share(devices.size(), [&](std::size_t i, int) { devices[i]->reserve(); });
    });
}

void State::remove_files() {
    for (const std::string& file : state_files(resources_.settings, resources_.world.rank(),
                                               resources_.world.size(), resources_.set)) {
        store::remove_state(file, resources_.settings.csd.log);
    }
    store::remove_empty_folders(new_folders_);
}

store::ProgramState State::program_with(std::size_t commit) const {
    const Decision& decision = start_.decision;
    return resources_.options.program == ProgramUse::none
               ? store::ProgramState()
               : read_kept_program(resources_.world, start_, decision.steps[commit].programs,
                                   decision.line, decision.steps[commit].commit.step);
}

store::ProgramState State::program_with(checkpoint::Reader& reader) const {
    if (resources_.options.program == ProgramUse::none || !resources_.computes()) {
        return {};
    }
    const int computing = config::computing_ranks(resources_.settings, resources_.world.size());
    try {
        return reader.program(program_of_checkpoint(reader.description().programs,
                                                    resources_.world.rank(), computing));
    } catch (const ConfigError&) {
        if (resources_.options.program == ProgramUse::needed) {
            throw;
        }
        return {};
    }
}

// The files are complete now, and the next step has not begun, so the position is listed for every
// csd.durability.
void State::list_what_was_filled(store::ProgramState program, const store::Commit& position) {
    program_ = std::move(program);
    kept_step_ = position.step;
    if (resources_.options.program != ProgramUse::none) {
        resources_.world.together([&] { resources_.log.begin_program(position.step, program_); });
    }
    resources_.prepare_commit();
    resources_.pipeline->commit(resources_.log, position);
    resources_.world.barrier();
}

void State::keep_program(std::int64_t step, std::span<const std::byte> bytes) {
    expects(resources_.options.program != ProgramUse::none,
            "the client said that it keeps something");
    kept_step_ = step;
    if (resources_.is_durable_by_step()) {
        resources_.log.keep_program(step, bytes);
    }
}

void State::commit(const store::Commit& position) {
    expects(resources_.commits_early() || !resources_.pipeline->is_updating(),
            "a step is finished before it is committed");
    if (!resources_.is_durable_by_step() ||
        (resources_.commits_early() && committed_ == position)) {
        return;
    }
    committed_ = position;
    expects(resources_.options.program == ProgramUse::none || kept_step_ == position.step,
            "what the client keeps is durable before the manifests name the step");
    Stopwatch watch;
    if (!resources_.log.is_prepared()) {
        resources_.prepare_commit();
    }
    resources_.pipeline->commit(resources_.log, position);
    resources_.faults.pass(FaultPhase::after_commit);
    commit_seconds_ += watch.lap();
}

void State::forget_commits() {
    resources_.world.together([this] { resources_.log.claim(); });
}

void State::replace_runs() {
    for (const FoundManifest& one : start_.found.manifests) {
        if (one.manifest && one.manifest->line.run != line_.run) {
            replaced_runs_.insert(one.manifest->line.run);
        }
    }
    resources_.world.together([&] {
        if (resources_.world.rank() == 0) {
            checkpoint::take_over_folder(config::checkpoint_folder(resources_.settings),
                                         {.line = line_, .replaced = replaced_runs_});
        }
    });
}

}  // namespace nearstep::engine
