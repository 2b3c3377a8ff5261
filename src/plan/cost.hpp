// The modelled cost of a choice: the terms of a step's time, and the memory it needs. The formulas
// are in docs/planner.md.
#pragma once

#include "plan/demand.hpp"

#include <span>
#include <string_view>

namespace nearstep::plan {

// Seconds of a step. A phase takes as long as its slowest part.
struct Terms {
    double fwd_gpu = 0;   // matrix products
    double fwd_load = 0;  // parameters to the GPU
    double fwd = 0;
    double bwd_gpu = 0;  // including recomputation
    double bwd_load = 0;
    double reduce = 0;  // dense gradients inside the node, and between the nodes that G spans
    double encode = 0;
    double out = 0;   // payloads from the GPU to the host
    double scat = 0;  // payloads between nodes
    double sum = 0;   // at the owner, in host memory
    double down = 0;  // from the owner to the devices or their drives, during backward
    double tail = 0;  // of the last block
    double bwd = 0;
    double norm = 0;    // the barrier between backward and update
    double csd = 0;     // on drives
    double memory = 0;  // in host memory
    double gpu = 0;     // in GPU memory
    double up = 0;      // new parameters from the devices to the host
    double gather = 0;
    double load = 0;  // new parameters to the GPUs
    double fill = 0;  // the first subgroup through all stages
    double opt = 0;
    double overlap = 0;  // how much the update overlaps the next forward
    double step = 0;
};

struct TermName {
    std::string_view name;  // "T_fwd_gpu"
    double Terms::*value;
    const char* meaning;
    bool is_phase;  // the sum or maximum of earlier terms
};

// Returns the names of all terms, in the order of the struct.
std::span<const TermName> term_names();

// Traffic of one node per step, in bytes per parameter of the model: on the network of a node that
// computes, else of the node that has the most devices, as if all Problem::homes() were like it.
struct Volumes {
    double host_down = 0;  // host to devices
    double host_up = 0;
    double device_read = 0;  // from drives, all devices of the node
    double device_write = 0;
    double network_gradients = 0;   // leaving the node
    double network_parameters = 0;  // reaching it
};

// Works for choices that are not allowed, too. The site's rates and memory sizes do not matter.
Volumes volumes_of(const Problem& problem, const Choice& choice);

struct Cost {
    Terms terms;
    Demand demand;
    Volumes volumes;
};

// The choice must be allowed.
Cost cost_of(const Problem& problem, const Choice& choice);

// Which fields of a choice are fixed: those up to `scatter`, or `optimizer` as well.
enum class Known { before_optimizer, with_optimizer };

// A lower bound on the step time of all choices with the same fixed fields. Before the optimizer's
// mesh is fixed, pass the finest mesh, which minimises all other terms.
double least_seconds(const Problem& problem, const Choice& choice, Known known);

}  // namespace nearstep::plan
