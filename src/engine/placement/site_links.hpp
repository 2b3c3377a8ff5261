// The links of a run's site, with the rate limits from its settings (plan/link_rates.hpp).
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"
#include "shaping/clock.hpp"
#include "shaping/node_links.hpp"

#include <memory>
#include <string>

namespace nearstep::engine {

// Makes this rank's links; the ranks of a node share its host link and its network. Returns null if
// no rate is set. Collective. Throws ConfigError, on all ranks alike, if the ranks of a node cannot
// share memory. The clock outlives the links.
std::unique_ptr<shaping::NodeLinks> make_links(const mpi::Communicator& world,
                                               const config::EngineSettings& settings,
                                               const shaping::Clock& clock);

// A warning if the site says more than twice what a short exchange between neighbouring nodes shows
// (link.network_gb_s, with link.scale = 0), else empty. Collective.
std::string check_network(const mpi::Communicator& world, const config::EngineSettings& settings);

}  // namespace nearstep::engine
