// Claims, empties and removes the engine's state files, and lists what fills them in the manifest.
// Called by engine_begin.cpp and engine_state.cpp.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/packed.hpp"
#include "engine/engine.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/layout_line.hpp"
#include "engine/placement/tiers.hpp"
#include "engine/state/kept_program.hpp"
#include "mpi/gathered_text.hpp"
#include "store/folder.hpp"
#include "store/subgroup_header.hpp"

#include <unistd.h>

#include <random>

namespace nearstep::store {

template <typename Archive>
void list(Archive& archive, PlannedFile& one) {
    archive(one.path, one.bytes);
}

}  // namespace nearstep::store

namespace nearstep::engine {

namespace {

std::string name_of_file(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

// A random id, different for every run and the same on all ranks.
std::string Engine::draw_id() const {
    std::random_device source;
    const std::uint64_t high = source();
    return world_.broadcast(to_hex(high << 32U | source()), 0);
}

// The files, too, carry it from here on.
void Engine::name_state(const std::string& id) {
    state_ = id;
    for (const auto& device : pipeline_->devices()) {
        device->belong_to(store::number_of_state(id));
    }
}

store::Manifest Engine::manifest() const {
    store::Manifest manifest{.line = line_,
                             .model = identity_.model,
                             .layout = layout_line(settings_, world_.size(), copy_),
                             .seed = identity_.seed,
                             .data = identity_.data,
                             .dtype = name_of(layout_.dtype),
                             .threads = threads_,
                             .steps = identity_.steps,
                             .state = state_,
                             .replaces = replaced_,
                             .copy = owners_.copies() > 1 ? copy_.ranks : std::vector<int>(),
                             .places = places_};
    for (const std::string& file : state_files(settings_, world_.rank(), world_.size(), set_)) {
        manifest.files.push_back(name_of_file(file));
    }
    return manifest;
}

void Engine::claim_files() {
    world_.together([this] {
        std::vector<std::string> files = state_files(settings_, world_.rank(), world_.size(), set_);
        files.push_back(manifest_path(settings_, world_.rank(), set_));
        const std::vector<std::string> missing = store::missing_folders(files);
        new_folders_.insert(new_folders_.end(), missing.begin(), missing.end());
        make_memory_folder(settings_);
        store::make_writable_folder(store::folder_of(files.back()));
        for (const auto& device : pipeline_->devices()) {
            device->claim();
        }
    });
}

// Each device has looked whether its own files fit. The files of a node's devices may lie on one
// drive.
void Engine::expect_room() const {
    const std::vector<std::string> of_ranks = gather_text(
        world_, packed(planned_files(settings_, world_.rank(), world_.size(), copy_, set_)));
    std::vector<store::PlannedFile> of_node;
    for (const int rank : nodes_.ranks_beside(world_.rank())) {
        std::vector<store::PlannedFile> files;
        unpack(of_ranks[static_cast<std::size_t>(rank)], files);
        of_node.insert(of_node.end(), files.begin(), files.end());
    }
    world_.together([&] { store::check_folders(of_node); });
}

// Before files are emptied, all manifests claim them and list no step. If an older state must stay
// until the new one is durable, manifests do not name the new files yet.
void Engine::empty_state_files(const std::string& replaced, const Claimed& claimed) {
    claim_files();
    name_state(draw_id());
    replaced_ = replaced;
    log_.begin(manifest());
    if (replaced.empty()) {
        world_.together([this] { log_.claim(); });
    }
    if (claimed) {
        claimed();
    }
    // Memory is cleared as it is reserved, which takes one thread longer than the rest of a start.
    const auto& devices = pipeline_->devices();
    world_.together(
        [&] { pool_.share(devices.size(), [&](std::size_t i, int) { devices[i]->reserve(); }); });
}

void Engine::remove_state_files() {
    for (const std::string& file : state_files(settings_, world_.rank(), world_.size(), set_)) {
        ::unlink(file.c_str());
    }
}

store::ProgramState Engine::program_with(const Start& start, std::size_t commit) const {
    const Decision& decision = start.decision;
    return options_.program == ProgramUse::none
               ? store::ProgramState()
               : read_kept_program(world_, start, decision.programs[commit], decision.line,
                                   decision.commits[commit].step);
}

store::ProgramState Engine::program_with(checkpoint::Reader& reader) const {
    if (options_.program == ProgramUse::none || !computes()) {
        return {};
    }
    const int computing = config::computing_ranks(settings_, world_.size());
    try {
        return reader.program(
            program_of_checkpoint(reader.description().programs, world_.rank(), computing));
    } catch (const ConfigError&) {
        if (options_.program == ProgramUse::needed) {
            throw;
        }
        return {};
    }
}

// For every csd.durability: the files are complete now, and the next step has not begun.
void Engine::list_what_was_filled(store::ProgramState program) {
    program_ = std::move(program);
    kept_step_ = steps_done_;
    if (options_.program != ProgramUse::none) {
        world_.together([this] { log_.begin_program(steps_done_, program_); });
    }
    prepare_commit();
    pipeline_->commit(log_, position());
    world_.barrier();
}

void Engine::forget_commits() {
    world_.together([this] { log_.claim(); });
}

}  // namespace nearstep::engine
