// nearstep doctor: what each node has, and which path each part of a run takes there.
#pragma once

#include "config/run.hpp"
#include "mpi/communicator.hpp"

#include <nlohmann/json_fwd.hpp>

#include <ostream>

namespace nearstep::doctor {

// A report with the findings of every node, collected by its first rank. The same on all ranks.
// Collective. Leaves no files behind.
nlohmann::ordered_json examine(const mpi::Communicator& world, const config::Run& run);

// Prints the report's summaries, one per line.
void print(const nlohmann::ordered_json& report, std::ostream& out);

}  // namespace nearstep::doctor
