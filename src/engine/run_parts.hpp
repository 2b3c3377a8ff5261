// The parts of a run: its start, the resources of a rank, the state in them and the steps over
// them. Only run.cpp and run_begin.cpp include this, and nothing else knows both State and Step.
#pragma once

#include "engine/resources/resources.hpp"
#include "engine/restart/old_files.hpp"
#include "engine/restart/start.hpp"
#include "engine/state/carried.hpp"
#include "engine/state/state.hpp"
#include "engine/step/step.hpp"
#include "nearstep/run.hpp"

#include <cstddef>
#include <utility>

namespace nearstep::engine {

struct Run::Parts {
    Parts(const mpi::Communicator& world, Start found, const Layout& layout,
          const Identity& identity, const EngineOptions& options)
        : start(std::move(found)),
          resources(world, start, layout, identity, options),
          state(resources, start),
          step(resources) {}

    Start start;
    // The members below refer to those above them.
    Resources resources;
    State state;
    Step step;

    // --- A run's begin, in run_begin.cpp ---

    BeginReport begin();
    void fill(const Fill& values, const Carried* carried);
    // Does what was decided, except that a fresh start has no values yet.
    void act(const OldFiles& old, BeginReport& begun);
    // Resumes the newest intact step, of this layout or of another one. A checkpoint of the same
    // step wins over an older step.
    void resume(BeginReport& begun);
    bool resume_at(std::size_t commit, BeginReport& begun);
    void load(BeginReport& begun);
    // Steps go on behind the origin of the state, and the manifests name it.
    void go_on_from(Origin origin);
    std::string save(const std::string& folder, std::span<const std::byte> program);

    std::string threads_before;  // store::Manifest::threads of the steps that were resumed
};

}  // namespace nearstep::engine
