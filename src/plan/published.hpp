// Formulas that others published, to set beside the planner's.
#pragma once

#include "plan/cost.hpp"

#include <string>

namespace nearstep::plan {

// --- Traffic of the Smart-Infinity paper's methods (HPCA'24, Table I) ---
// Over the links that a node's devices share.

enum class Method { zero_infinity, smart_update, smart_comp };

// Bytes per parameter and step, summed over all nodes.
struct SharedBytes {
    double host_link = 0;  // both directions
    double network = 0;    // leaving the nodes

    double total() const { return host_link + network; }
};

// M = 2 bytes per parameter is the 16-bit model. With Adam the host link carries
//     ZeRO-Infinity: 6M of state and 2M of fp32 gradients, each way
//     SmartUpdate: 2M of gradients to the devices, 2M of new fp32 parameters back
//     SmartComp: the same with `volume` x 2M of gradients; the paper's "2 %" is a volume of 0.02.
// The paper has one node. With more, every other node receives the gradients and the parameters
// once, as 16-bit values. ZeRO-3 sends the parameters twice, in one pass over all micro-batches.
// SmartComp sends `volume` x 2M of gradients between nodes, too.
SharedBytes paper_bytes(Method method, double volume, int nodes);

// --- The update time of n devices in one node, as a replication of Smart-Infinity found it ---
// The planner grew from it.

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
