// One owner of a run's beginning: where its devices lie, how fast they are, what earlier runs left,
// and the engine that goes on from there.
//
//     engine::Run run = engine::Run::open(world, settings, layout, request, identity, options);
//     run.begin(fill);
//     for each step: see engine.hpp, with run.engine()
#pragma once

#include "config/engine_settings.hpp"
#include "engine/engine.hpp"
#include "engine/face/layout.hpp"
#include "engine/face/start_request.hpp"
#include "engine/restart/start.hpp"
#include "mpi/communicator.hpp"

#include <cstdint>
#include <memory>

namespace nearstep::engine {

class Run {
public:
    // Finds what the run begins with, and opens and locks the state files without changing them.
    // `world` outlives the run. Collective; throws as find_start().
    static Run open(const mpi::Communicator& world, const config::EngineSettings& settings,
                    const Layout& layout, const StartRequest& request, const Identity& identity,
                    const EngineOptions& options);

    // Opens what find_start() found.
    Run(const mpi::Communicator& world, Start start, const Layout& layout, const Identity& identity,
        const EngineOptions& options);

    // Whether the run continues no existing state, so that begin() needs start values.
    bool begins_anew() const { return start_.decision.action == Action::start_anew; }
    // Does what was decided; `fill` writes start values. Collective, once. If it throws, what was
    // durable before still is; if it refuses (ConfigError), what it made is gone, too.
    BeginReport begin(const Engine::Fill& fill);
    // Two calls that do what begin() does. After prepare() the state has its space, and what the
    // user can mend was refused. If begins_anew(), fill() comes next and writes the start values,
    // which may take long.
    BeginReport prepare();
    void fill(const Engine::Fill& fill, const Carried* carried = nullptr);

    // The step that begin() goes on from; -1: it begins anew.
    std::int64_t newest_step() const;
    // Before begin(): goes on from the state of an earlier step, where programs that each have an
    // engine of one rank meet. Throws ConfigError if that state is not kept.
    void keep_to(std::int64_t step);

    Engine& engine() { return *engine_; }
    const Engine& engine() const { return *engine_; }
    const Start& start() const { return start_; }

private:
    Start start_;
    std::unique_ptr<Engine> engine_;
};

}  // namespace nearstep::engine
