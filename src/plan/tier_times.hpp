// How the state is divided among GPU memory, host memory and drives, and how long the first two
// take to update their parts. docs/planner.md has the formulas.
#pragma once

#include "plan/numbers.hpp"

namespace nearstep::plan {

// Seconds of an update.
struct TierSeconds {
    double gpu = 0;
    double memory = 0;
};

// Seconds of an update in each tier, with the choice's shares. GPU memory is updated by the GPU.
// Host memory is updated by an engine of each rank with drives and, without storage nodes, by the
// rank's GPU over its link.
TierSeconds tier_seconds(const Problem& problem, const Choice& choice, const Numbers& numbers);

// Bytes of both generations of the state that a rank holds in each tier, with the choice's shares.
config::TierBytes tier_bytes(const Problem& problem, const Choice& choice);

// The shares with which the tiers end their update together, as far as their memories suffice.
// `asked` are GB of a rank: a number is a given part; with "auto" a tier holds what is best, up to
// half of what the choice leaves free, as a run takes. The GPU begins its part before the next
// forward, so what the forward hides stays elsewhere. Other fields of the choice are final.
Shares best_shares(const Problem& problem, Choice choice, const config::Tiers& asked);

}  // namespace nearstep::plan
