// How much of each memory a choice needs. The formulas are in docs/planner.md.
#pragma once

#include "plan/numbers.hpp"

#include <string_view>
#include <vector>

namespace nearstep::plan {

// Bytes needed in one GPU, one host, one device and one drive.
struct Demand {
    double gpu = 0;
    double host = 0;
    double device = 0;
    double drive = 0;
    double logs = 0;      // the least of a device
    double log_room = 0;  // of them; 0: no limit
};

struct Fit {
    std::string_view memory;
    double needed = 0;
    double available = 0;

    double ratio() const { return needed > 0 ? needed / available : 0; }
};

// Needed and available bytes of the four memories and, where it is limited, of the room of logs.
std::vector<Fit> fits_of(const Demand& demand, const Site& site);

Demand demand_of(const Problem& problem, const Choice& choice, const Numbers& numbers);

bool does_fit(const Demand& demand, const Site& site);

// GPU memory that a choice needs: layers that Kept::most keeps and sums that Sums::host leaves
// there take what is left. Only the fields up to `scatter` matter, and with state in GPU memory the
// optimizer's mesh.
double gpu_bytes(const Problem& problem, const Choice& choice);

// The share of the layers that keep what their backward needs, beside the state in GPU memory.
double share_that_keeps(const Problem& problem, const Choice& choice);

// GPU memory of a rank's sums of gradients over several micro-batches if all of them are there.
double sum_bytes_on_gpu(const Problem& problem, const Choice& choice);
// The share of those sums that waits on the host, beside the state in GPU memory.
double share_of_sums_on_host(const Problem& problem, const Choice& choice);

}  // namespace nearstep::plan
