// Opens a run and begins it. Called by the trainer, the Python binding and programs that embed the
// engine.
#include "engine/run.hpp"

#include "engine/checkpoint_folder.hpp"

#include <utility>

namespace nearstep::engine {

Run Run::open(const mpi::Communicator& world, const config::EngineSettings& settings,
              const Layout& layout, const Wish& wish, const Identity& identity,
              const EngineOptions& options) {
    Start start = find_start(world, settings, layout, wish, identity.model, options);
    if (options.needs_shared_folder) {
        check_shared_folder(world, config::checkpoint_folder(settings));
    }
    return {world, std::move(start), layout, identity, options};
}

Run::Run(const mpi::Communicator& world, Start start, const Layout& layout,
         const Identity& identity, const EngineOptions& options)
    : start_(std::move(start)),
      engine_(std::make_unique<Engine>(world, start_, layout, identity, options)) {}

BeginReport Run::begin(const Engine::Fill& fill) {
    BeginReport begun = prepare();
    if (begins_anew()) {
        this->fill(fill);
    }
    return begun;
}

}  // namespace nearstep::engine
