// Formulas of the planner that stand alone. The symbols are those of docs/planner.md.
#pragma once

#include "plan/choice.hpp"

namespace nearstep::plan {

// Seconds to move `bytes`; 0 if the rate is 0, which means no such link.
inline double seconds(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

// Seconds of a collective between nodes, of which each sends `bytes`: one of large messages, or one
// that goes layer by layer.
double bulk_seconds(const Site& site, double bytes, double nodes);
double layer_seconds(const Site& site, double bytes, double nodes);

// Payload bytes per parameter of a gradient codec (docs/formats/gradient-payload.md). `keep` is the
// share of elements that topk keeps; `element_bytes` is the size of a dense gradient element.
double payload_bytes(Codec codec, double keep, double element_bytes);

// Bytes per parameter that an owner hands to its devices when it receives `lists` payloads. The
// densification rule: lists are worthwhile while this is below the size of dense gradients.
double handover_bytes(Handover handover, Codec codec, double lists, double keep,
                      double element_bytes);

// Seconds that one device takes per parameter.
struct DeviceTime {
    double read = 0;
    double engine = 0;
    double write = 0;
    double both = 0;     // reads and writes, of a drive that has one rate for them
    double deliver = 0;  // new parameters to the host, all devices of the node at once

    // Seconds per parameter over many subgroups. A slot is held from read to delivery, so too few
    // slots leave links idle. Serial devices overlap nothing.
    double per_parameter(bool is_serial, int slots) const;
};

// Bytes are per parameter. `memory_bytes`: gradients that reach the device's memory; `new_bytes`:
// new parameters that leave it.
DeviceTime device_time(const Problem& problem, double memory_bytes, double new_bytes);

// Number of nodes above which gathering new parameters takes longer than updating them: N* = 1 +
// B_nic / (w C r), with w bytes per parameter, C devices per node and r parameters per second and
// device.
double crossover_nodes(double network, double gather_bytes, int csds, double parameters_per_s);

// --- Seconds on the link between a node's host and its devices ---
// Where the cost model of near-storage updates does not apply: in mode base, and where GPUs share
// that link. Bytes are of one node and step.

// The update in mode base: all drives read and write at once, over the host link. The state is read
// and written, gradients are read again.
double base_update_seconds(const Site& site, double state, double gradients);

// Gradients to the drives in mode base. Backward hides them while it lasts.
double base_gradient_seconds(const Site& site, double gradients);

// Traffic of GPUs: `of_gpus` bytes of parameters in forward; in backward as many, as many gradients
// back, and `gradients` to the devices in the direction of the parameters.
double gpu_forward_seconds(const Site& site, double of_gpus);
double gpu_backward_seconds(const Site& site, double of_gpus, double gradients);

}  // namespace nearstep::plan
