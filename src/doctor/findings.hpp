// The findings of one node.
#pragma once

#include "config/run.hpp"
#include "doctor/system.hpp"

#include <nlohmann/json_fwd.hpp>

namespace nearstep::doctor {

// What a node's ranks do: storage ranks hold devices alone, and others may have none then.
struct Duties {
    bool computes = true;
    bool holds = true;
};

// An object with a member per topic that matters to the duties: its facts, and a "summary" in words
// of what was found and how a run with these settings uses it. To see what works, it allocates some
// MiB, opens an io_uring and writes a page in each folder of csd.path, and leaves none of them
// behind.
nlohmann::ordered_json find_all(const config::Run& run, const System& system, Duties duties);

}  // namespace nearstep::doctor
