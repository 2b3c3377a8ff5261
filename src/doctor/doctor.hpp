// nearstep doctor: what each node has, and which path each part of a run takes there.
#pragma once

#include "config/run.hpp"
#include "mpi/communicator.hpp"

#include <nlohmann/json_fwd.hpp>

#include <ostream>

namespace nearstep::doctor {

// A report with the findings of every node, each by the node's first rank with these settings; the
// same on all ranks. Collective. Leaves nothing behind.
nlohmann::ordered_json examine(const mpi::Communicator& world, const config::Run& run);

// The report's summaries, a line for each.
void print(const nlohmann::ordered_json& report, std::ostream& out);

}  // namespace nearstep::doctor
