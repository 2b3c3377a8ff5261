// One owner of a run's beginning: where its devices lie, how fast they are, what earlier runs left,
// and the engine that goes on from there.
//
//     engine::Run run = engine::Run::open(world, settings, layout, wish, identity, options);
//     run.begin(fill);
//     for each step: see engine.hpp, with run.engine()
#pragma once

#include "config/engine_settings.hpp"
#include "engine/engine.hpp"
#include "engine/face/layout.hpp"
#include "engine/face/wish.hpp"
#include "engine/restart/start.hpp"
#include "mpi/communicator.hpp"

#include <memory>

namespace nearstep::engine {

class Run {
public:
    // Finds what the run begins with, and opens and locks the state files without changing them.
    // `world` outlives the run. Collective; throws as find_start().
    static Run open(const mpi::Communicator& world, const config::EngineSettings& settings,
                    const Layout& layout, const Wish& wish, const Identity& identity,
                    const EngineOptions& options);

    // Opens what find_start() found.
    Run(const mpi::Communicator& world, Start start, const Layout& layout, const Identity& identity,
        const EngineOptions& options);

    // Whether the run continues no existing state, so that begin() needs start values.
    bool begins_anew() const { return start_.decision.action == Action::start_anew; }
    // Does what was decided; `fill` writes start values. Collective, once. If it throws, what was
    // durable before still is.
    BeginReport begin(const Engine::Fill& fill);
    // The same in two calls. After prepare() the state has its space, and what the user can mend
    // was refused. If begins_anew(), fill() comes next, and may take its time: it writes the
    // values.
    BeginReport prepare() { return engine_->begin(start_); }
    void fill(const Engine::Fill& fill) { engine_->fill(start_, fill); }

    Engine& engine() { return *engine_; }
    const Engine& engine() const { return *engine_; }
    const Start& start() const { return start_; }

private:
    Start start_;
    std::unique_ptr<Engine> engine_;
};

}  // namespace nearstep::engine
