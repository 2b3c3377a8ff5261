// The planner's formulas that stand alone. Symbols as in docs/planner.md.
#pragma once

#include "plan/choice.hpp"

namespace nearstep::plan {

// Seconds that `bytes` take; 0 where the site has no such link, whose rate is 0.
inline double seconds(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

// Payload bytes per parameter of a gradient codec, as docs/gradient-payload.md has them; `keep` is
// the share of elements that topk keeps, `element_bytes` those of a dense gradient.
double payload_bytes(Codec codec, double keep, double element_bytes);

// Share of the elements that at least one of `lists` independent lists holds: 1 - (1 - keep)^n.
double union_share(double keep, double lists);

// Bytes per parameter that an owner hands to its devices when `lists` payloads reach it. Lists pay
// as long as these are below dense gradients: the densification rule.
double handed_bytes(Owner owner, Codec codec, double lists, double keep, double element_bytes);

// What a parameter's update takes of one device, in seconds.
struct DeviceTime {
    double read = 0;
    double engine = 0;
    double write = 0;
    double deliver = 0;  // new parameters to the host, all devices of the node at once

    // Of one subgroup after another. A slot is held from read to delivery, so that too few of them
    // leave links idle; serial devices overlap nothing.
    double per_parameter(bool is_serial, int slots) const;
};

// `flash_bytes`: of gradients that are read from the drive; `memory_bytes`: of those that reach the
// device's memory; `new_bytes`: of new parameters that leave it.
DeviceTime device_time(const Problem& problem, double flash_bytes, double memory_bytes,
                       double new_bytes);

// Nodes from which on the gather of new parameters takes longer than their update:
// N* = 1 + B_nic / (w C r), with w bytes per parameter, C devices per node and r parameters per
// second and device.
double crossover_nodes(double network, double gather_bytes, int csds, double parameters_per_s);

}  // namespace nearstep::plan
