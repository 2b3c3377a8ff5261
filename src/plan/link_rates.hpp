// The rates that a run's settings give to the links of its site.
#pragma once

#include "config/engine_settings.hpp"
#include "shaping/node_links.hpp"

#include <string>

namespace nearstep::plan {

// Returns the links' scaled rates in bytes per second.
shaping::Rates rates_of(const config::LinkSettings& settings);

// Scaled, in parameters per second; 0: no limit.
double update_rate_of(const config::EngineSettings& settings);

// Bytes of 16-bit parameters, or of dense gradients, that a node's GPUs move in one pass over all
// blocks. `vector_bytes` is the size of all parameters. 0 if the GPUs have links of their own.
double gpu_bytes_of_node(const config::LinkSettings& link, int ranks, double vector_bytes);

// "shaped links: ...", printed when a run begins; empty if no rate is set.
std::string describe_links(const config::EngineSettings& settings);

}  // namespace nearstep::plan
