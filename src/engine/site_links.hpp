// The links of a run's site, with the rate limits from its settings.
#pragma once

#include "config/engine_settings.hpp"
#include "link/clock.hpp"
#include "link/node_links.hpp"
#include "mpi/communicator.hpp"

#include <memory>
#include <string>

namespace nearstep::engine {

// Scaled, in bytes per second.
link::Rates rates_of(const config::LinkSettings& settings);

// Scaled, in parameters per second; 0: no limit.
double update_rate_of(const config::EngineSettings& settings);

// This rank's links; the ranks of a node share its host link and its network. Null if no rate is
// set. Collective. Throws ConfigError, on all ranks alike, if the ranks of a node cannot share
// memory. The clock outlives the links.
std::unique_ptr<link::NodeLinks> make_links(const mpi::Communicator& world,
                                            const config::EngineSettings& settings,
                                            const link::Clock& clock);

// "shaped links: ...", printed when a run begins; empty if no rate is set.
std::string describe_links(const config::EngineSettings& settings);

}  // namespace nearstep::engine
