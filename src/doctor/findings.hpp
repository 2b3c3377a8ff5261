// The findings of one node.
#pragma once

#include "config/run.hpp"
#include "doctor/system.hpp"

#include <nlohmann/json_fwd.hpp>

namespace nearstep::doctor {

// An object with a member per topic: its facts, and "summary", which says in words what was found
// and what a run with these settings does with it. Makes a buffer of some MiB, an io_uring and a
// page in each folder of csd.path to see what works, and leaves none of them.
nlohmann::ordered_json find_all(const config::Run& run, const System& system);

}  // namespace nearstep::doctor
