// The links of a run's site, held to the rates that its settings give them.
#pragma once

#include "config/engine_settings.hpp"
#include "link/clock.hpp"
#include "link/node_links.hpp"
#include "mpi/communicator.hpp"

#include <memory>
#include <string>

namespace nearstep::engine {

// In bytes per second, scaled.
link::Rates rates_of(const config::LinkSettings& settings);

// Parameters per second, scaled; 0: no limit.
double update_rate_of(const config::EngineSettings& settings);

// This rank's; the ranks of a node share its host link and its network. Null if no rate is set.
// Collective. Throws ConfigError, on all ranks alike, if a node's ranks cannot share memory. The
// clock outlives the links.
std::unique_ptr<link::NodeLinks> make_links(const mpi::Communicator& world,
                                            const config::EngineSettings& settings,
                                            const link::Clock& clock);

// "shaped links: ..." for the head of a run; empty if no rate is set.
std::string describe_links(const config::EngineSettings& settings);

}  // namespace nearstep::engine
