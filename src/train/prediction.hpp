// What a step should take on the site's links: modelled, to stand beside what was measured.
#pragma once

#include "train/summary.hpp"
#include "train/trainer.hpp"

#include <optional>

namespace nearstep::train {

// `unshaped`: the phases of the same compute where no link delays. Formulas: plan/step_time.hpp;
// rates: the site's, and what the record's calibration has in their place.
PhaseSeconds predict(const RunRecord& record, const PhaseSeconds& unshaped);

// What the links alone let expect of gradients (in `backward`) and update; compute is not known, so
// that `forward` is 0. Empty if the site gives no rate.
std::optional<PhaseSeconds> expect_of_links(const RunRecord& record);

}  // namespace nearstep::train
