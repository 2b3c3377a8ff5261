// The doctor's findings about accelerator cards.
#pragma once

#include "config/run.hpp"

#include <nlohmann/json_fwd.hpp>

namespace nearstep::doctor {

// Adds "xrt", a "card_N" for each card and, if cards are requested but not named, a
// "card_of_folder_N" for each folder of csd.path.
void add_card_findings(const config::Run& run, nlohmann::ordered_json& findings);

}  // namespace nearstep::doctor
