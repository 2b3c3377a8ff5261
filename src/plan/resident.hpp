// Times of a step whose optimizer state lies in the memory of the GPUs: ZeRO's stages, MiCS, AMSP.
#pragma once

#include "plan/cost.hpp"

namespace nearstep::plan {

// Sets all terms of a choice with state in GPU memory.
void set_resident_terms(const Problem& problem, const Choice& choice, const Numbers& numbers,
                        Terms& terms);

}  // namespace nearstep::plan
