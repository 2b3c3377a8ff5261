#include "config/placement.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace nearstep::config {

namespace {

Sharding sharding_of(const std::string& word, Sharding automatic) {
    for (const Sharding sharding : {Sharding::replicated, Sharding::node, Sharding::global}) {
        if (word == name_of(sharding)) {
            return sharding;
        }
    }
    expects(word == "auto", "a placement is one of its words");
    return automatic;
}

}  // namespace

const char* name_of(Sharding sharding) {
    switch (sharding) {
        case Sharding::replicated:
            return "replicated";
        case Sharding::node:
            return "node";
        case Sharding::global:
            return "global";
    }
    throw ContractError("A sharding has a value that no sharding has.");
}

Placement placement_of(const EngineSettings& settings) {
    Placement placement;
    placement.parameters = sharding_of(settings.placement.parameters, Sharding::replicated);
    placement.optimizer = sharding_of(settings.placement.optimizer, Sharding::global);
    const Sharding usual =
        settings.exchange.scatter == "flat" ? Sharding::replicated : Sharding::node;
    placement.gradients =
        sharding_of(settings.placement.gradients,
                    std::min(std::max(usual, placement.parameters), placement.optimizer));
    return placement;
}

}  // namespace nearstep::config
