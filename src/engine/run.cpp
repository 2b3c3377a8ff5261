// Opens a run and begins it. Called by the trainer, the Python binding and programs that embed the
// engine.
#include "engine/run.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "engine/checkpoint_folder.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace nearstep::engine {

Run Run::open(const mpi::Communicator& world, const config::EngineSettings& settings,
              const Layout& layout, const StartRequest& request, const Identity& identity,
              const EngineOptions& options) {
    Start start = find_start(world, settings, layout, request, identity.model, options);
    if (options.needs_shared_folder) {
        check_shared_folder(world, config::checkpoint_folder(settings));
    }
    return {world, std::move(start), layout, identity, options};
}

Run::Run(const mpi::Communicator& world, Start start, const Layout& layout,
         const Identity& identity, const EngineOptions& options)
    : start_(std::move(start)),
      engine_(std::make_unique<Engine>(world, start_, layout, identity, options)) {}

std::int64_t Run::newest_step() const {
    const Decision& decision = start_.decision;
    switch (decision.action) {
        case Action::resume_state:
        case Action::read_state:
            return decision.commits.front().step;
        case Action::load_checkpoint:
            return decision.checkpoint_step;
        default:
            return -1;
    }
}

// A commit that lists a later step than the one before it plus one is of skipped steps, which have
// the same state.
void Run::keep_to(std::int64_t step) {
    std::vector<store::Commit>& commits = start_.decision.commits;
    if (step == newest_step()) {
        return;
    }
    while (commits.size() > 1 && commits.front().step > step && commits[1].step >= step) {
        commits.erase(commits.begin());
    }
    if (start_.decision.action == Action::load_checkpoint || commits.empty() ||
        commits.front().step < step) {
        throw ConfigError(text("The state in ", start_.settings.csd.path.front(), " is of step ",
                               newest_step(), ", and other ranks have step ", step,
                               " alone: go on from a checkpoint with ", Term::from, "."));
    }
    commits.front().step = step;
}

BeginReport Run::prepare() {
    try {
        return engine_->begin(start_);
    } catch (const ConfigError&) {  // on all ranks alike
        engine_->withdraw();
        throw;
    }
}

void Run::fill(const Engine::Fill& fill, const Carried* carried) {
    try {
        engine_->fill(start_, fill, carried);
    } catch (const ConfigError&) {  // on all ranks alike
        engine_->withdraw();
        throw;
    }
}

BeginReport Run::begin(const Engine::Fill& fill) {
    BeginReport begun = prepare();
    if (begins_anew()) {
        this->fill(fill);
    }
    return begun;
}

}  // namespace nearstep::engine
