#include "engine/starting_point.hpp"

#include "base/error.hpp"
#include "engine/devices.hpp"
#include "engine/restart.hpp"
#include "engine/restart_search.hpp"
#include "store/provenance.hpp"

namespace nearstep::engine {

void refuse_unfinished(const config::EngineSettings& settings, bool looks_at_checkpoints,
                       const StepsOf& steps_of) {
    const Decision decision = decide(search_here(settings, looks_at_checkpoints, steps_of));
    if (decision.action == Action::refuse) {
        throw ConfigError(decision.refusal);
    }
}

bool begins_anew(const StartingPoint& start) {
    return start.decision->action == Action::start_anew;
}

StartingPoint find_starting_point(const mpi::Communicator& world,
                                  const config::EngineSettings& settings, std::size_t elems,
                                  const std::string& model, const Wish& wish) {
    const auto found = std::make_shared<const Found>(search(world, settings, elems, model, wish));
    const auto decision = std::make_shared<const Decision>(decide(*found));
    if (decision->action == Action::refuse) {
        throw ConfigError(decision->refusal);
    }
    if (decision->action != Action::resume_state) {
        world.together(
            [&] { store::refuse_foreign_files(files_of_rank(settings, world, decision->set)); });
    }
    return {.found = found, .decision = decision, .set = decision->set};
}

}  // namespace nearstep::engine
