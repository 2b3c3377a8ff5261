// How a run keeps its state, and what that takes of the memory of a node and of its busiest drive.
#pragma once

#include "config/engine_settings.hpp"
#include "csd/keeping.hpp"
#include "plan/numbers.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace nearstep::plan {

// A run keeps state as csd.log says, or else once, unless a part of the run reads the state of
// before, or a step has to survive a power cut, which empties memory.
csd::Keeping keeping_of(const config::EngineSettings& settings, bool lies_in_memory);

// Whether all state by csd.path lies in host memory.
bool is_in_memory(const config::EngineSettings& settings);
// Sets what a plan has of that. It looks at the folders of csd.path alone.
void set_keeping(const config::EngineSettings& settings, Workload& work);

// Bytes of the state by csd.path.
struct KeptState {
    double memory = 0;             // of all devices of a node, in the memory of its host
    double drive = 0;              // on the busiest drive, with its logs
    double written = 0;            // to that drive by a step
    csd::LoggedState logged = {};  // with Keeping::logged, of that drive's device
    double log_room = 0;           // for the logs of that device; 0: no limit
};

KeptState kept_state(const Problem& problem, const Choice& choice, const Numbers& numbers);

// Seconds of a restart that repeats as many updates as there are logs: it reads all logs, and each
// subgroup lacks half of the updates on average.
double replay_seconds(const Problem& problem, const Choice& choice);

// Returns what csd::describe() says, and how long that takes: "..., in about 20 s".
std::string describe(const csd::LoggedState& logged, double replay_s);
nlohmann::json to_json(const csd::LoggedState& logged, double replay_s);

}  // namespace nearstep::plan
