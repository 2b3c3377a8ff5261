// The formula that the planner grew from: the update time of n devices in one node, as a
// replication of Smart-Infinity found it.
#pragma once

#include "plan/cost.hpp"

#include <string>

namespace nearstep::plan {

// T_opt,n = max(T_opt / n, T_param_swap / min(n, B_PCIe / B_SSD)); T_total,n = T_fwd + T_bwd +
// T_opt,n.
struct Replication {
    int n = 1;              // devices of a node
    double opt = 0;         // update of a node's share on one device
    double param_swap = 0;  // T_param_swap: new parameters from one device to the host, at B_SSD
    double b_pcie = 0;      // rate of the host link
    double b_ssd = 0;       // read rate of a drive
    double opt_n = 0;
    double fwd = 0;
    double bwd = 0;
    double total_n = 0;
};

Replication replication_of(const Problem& problem, const Choice& choice, const Terms& terms);

// The formula with its symbols, then with its numbers: two lines.
std::string describe(const Replication& replication);

}  // namespace nearstep::plan
