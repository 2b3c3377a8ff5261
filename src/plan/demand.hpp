// What a choice needs of each memory. docs/planner.md has the formulas.
#pragma once

#include "plan/numbers.hpp"

#include <array>
#include <string_view>

namespace nearstep::plan {

// Bytes that one of each kind must hold.
struct Demand {
    double gpu = 0;
    double host = 0;
    double device = 0;
    double drive = 0;
};

struct Fit {
    std::string_view memory;
    double needed = 0;
    double available = 0;

    double ratio() const { return needed / available; }
};

// The four memories with their sizes.
std::array<Fit, 4> fits_of(const Demand& demand, const Site& site);

Demand demand_of(const Problem& problem, const Choice& choice, const Numbers& numbers);

bool does_fit(const Demand& demand, const Site& site);

// What the fields of the choice up to `scatter` need of a GPU's memory; the rest needs none.
double gpu_bytes(const Problem& problem, const Choice& choice);

}  // namespace nearstep::plan
