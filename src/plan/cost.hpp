// What a choice costs: the terms of a step's time, and what it needs of each memory. All of it is
// modelled. docs/planner.md has the formulas.
#pragma once

#include "plan/demand.hpp"

#include <span>
#include <string_view>

namespace nearstep::plan {

// Seconds of a step. A phase is as long as its slowest part.
struct Terms {
    double fwd_gpu = 0;   // products
    double fwd_load = 0;  // parameters to where the products are
    double fwd = 0;
    double bwd_gpu = 0;  // with the recomputing
    double bwd_load = 0;
    double reduce = 0;  // dense gradients inside the node, and over the nodes that G spans
    double encode = 0;
    double out = 0;   // payloads from the GPU to the host
    double scat = 0;  // payloads between nodes
    double sum = 0;   // at the owner, in host memory
    double down = 0;  // from the owner to the devices, or their drives, in backward
    double tail = 0;  // of the last block
    double bwd = 0;
    double norm = 0;  // the barrier between backward and update
    double csd = 0;
    double up = 0;    // new parameters from the devices to the host
    double push = 0;  // gradients that waited in host memory to the devices
    double gather = 0;
    double load = 0;  // new parameters to the GPUs
    double fill = 0;  // the first subgroup through all stages
    double opt = 0;
    double overlap = 0;  // of the update with the next forward
    double step = 0;
};

struct TermName {
    std::string_view name;  // "T_fwd_gpu"
    double Terms::*value;
    bool is_phase;  // made of those before it
};

// All terms in the order of the struct.
std::span<const TermName> term_names();

// Of a node, in bytes per parameter of the model and step.
struct Volumes {
    double host_down = 0;  // host to devices
    double host_up = 0;
    double device_read = 0;  // drives, all devices of the node
    double device_write = 0;
    double network_gradients = 0;  // leaving the node
    double network_parameters = 0;
};

// Also of choices that are not allowed; rates and memories of the site have no part in it.
Volumes volumes_of(const Problem& problem, const Choice& choice);

struct Cost {
    Terms terms;
    Demand demand;
    Volumes volumes;
};

// The choice must be allowed.
Cost cost_of(const Problem& problem, const Choice& choice);

// Whether devices would be faster with more slots.
bool waits_for_slots(const Problem& problem, const Choice& choice);

// Which fields of a choice are decided: those up to `scatter`, or `optimizer`, too.
enum class Known { before_optimizer, with_optimizer };

// What no choice with the same known fields is below, whatever the rest is. Before the optimizer's
// mesh is known, it must be the finest: all other terms are least with it.
double least_seconds(const Problem& problem, const Choice& choice, Known known);

}  // namespace nearstep::plan
