// nearstep doctor: what each node has, and which path each part of a run takes there.
#pragma once

#include "config/run_settings.hpp"
#include "mpi/communicator.hpp"

#include <nlohmann/json_fwd.hpp>

#include <ostream>

namespace nearstep::doctor {

// Whether a node's findings have "run": whether the ranks that are there may begin the run.
enum class RunFinding { left_out, included };

// A report with the findings of every node, collected by its first rank. The same on all ranks.
// Collective. Leaves no files behind.
nlohmann::ordered_json examine(const mpi::Communicator& world, const config::RunSettings& run,
                               RunFinding wanted);

// Adds "xrt", a "card_N" for each card and, if cards are requested but not named, a
// "card_of_folder_N" for each folder of csd.path.
void add_card_findings(const config::RunSettings& run, nlohmann::ordered_json& findings);

// Prints the report's summaries, one per line.
void print(const nlohmann::ordered_json& report, std::ostream& out);

}  // namespace nearstep::doctor
