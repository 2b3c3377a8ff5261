#include "config/placement.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace nearstep::config {

namespace {

Spread spread_of(const std::string& word, Spread automatic) {
    for (const Spread spread : {Spread::replicated, Spread::node, Spread::global}) {
        if (word == name_of(spread)) {
            return spread;
        }
    }
    expects(word == "auto", "a placement is one of its words");
    return automatic;
}

}  // namespace

const char* name_of(Spread spread) {
    switch (spread) {
        case Spread::replicated:
            return "replicated";
        case Spread::node:
            return "node";
        case Spread::global:
            return "global";
    }
    throw ContractError("A spread has a value that no spread has.");
}

Placement placement_of(const EngineSettings& settings) {
    Placement placement;
    placement.parameters = spread_of(settings.placement.parameters, Spread::replicated);
    placement.optimizer = spread_of(settings.placement.optimizer, Spread::global);
    const Spread usual = settings.exchange.scatter == "flat" ? Spread::replicated : Spread::node;
    placement.gradients =
        spread_of(settings.placement.gradients,
                  std::min(std::max(usual, placement.parameters), placement.optimizer));
    return placement;
}

}  // namespace nearstep::config
