// Expected step time on links of given rates: one node, equal devices, one GPU or the host.
#pragma once

namespace nearstep::plan {

// Bytes per second; 0 means no limit.
struct LinkRates {
    double device_read = 0;  // of one device
    double device_write = 0;
    double host = 0;        // the node's host link, each direction by itself
    double host_total = 0;  // both directions together
    double updates = 0;     // parameters per second of one device's engine
    double network = 0;     // from the node to the others
    double network_latency_s = 0;
};

// What one step moves, in bytes.
struct StepBytes {
    double parameters = 0;      // how many there are
    double state = 0;           // read once and written once
    double gradients = 0;       // to storage or to the devices
    double gradients_back = 0;  // read again in the update; mode base only
    double new_parameters = 0;  // over the host link after the update; none in base
    // Parameters to the node's GPUs in forward. Backward moves as many, and as many gradients back.
    double of_gpus = 0;
    double leaving_gradients = 0;   // to other nodes, in backward
    double leaving_parameters = 0;  // to other nodes, in the update
    // Messages to the other nodes one after another, as in T_scat and T_gather.
    double gradient_messages = 0;
    double parameter_messages = 0;
};

// serial: read, update and write one after another (su). overlapped: at once (su+o and su+o+c).
enum class Handler { serial, overlapped };

// T_opt of the formula below: the update on one device, without delivery of new parameters.
double update_seconds_of_one(const StepBytes& bytes, const LinkRates& rates, Handler handler);

// The replication's formula for n devices near storage,
//     T_opt,n = max(T_opt / n, T_param_swap / min(n, B_PCIe / B_SSD)).
// T_param_swap is the time to deliver new parameters from one device at B_SSD, the read rate of its
// drive. B_PCIe is the rate of the host link.
double update_seconds(const StepBytes& bytes, const LinkRates& rates, Handler handler, int devices);

// Extra seconds of n overlapped devices with `subgroups` subgroups each: the stages of the first
// subgroup before the slowest stage, and those of the last one after it. Nothing hides them.
double fill_seconds(const StepBytes& bytes, const LinkRates& rates, int devices, double subgroups);

// Seconds to deliver new parameters over the host link. The serial handler does not hide them, and
// the formula leaves them out. All devices deliver at the same time.
double delivery_seconds(const StepBytes& bytes, const LinkRates& rates);

// The update in mode base, which the formula does not cover: all drives read and write at once,
// over the host link.
double base_update_seconds(const StepBytes& bytes, const LinkRates& rates, int devices);

// Seconds to send gradients to the devices; backward hides them while it lasts. Mode base writes
// them to the drives.
double gradient_seconds(const StepBytes& bytes, const LinkRates& rates);
double base_gradient_seconds(const StepBytes& bytes, const LinkRates& rates, int devices);

// The GPUs' own traffic where they share the devices' host link. In backward, gradients to the
// devices compete with parameters to the GPUs.
double gpu_forward_seconds(const StepBytes& bytes, const LinkRates& rates);
double gpu_backward_seconds(const StepBytes& bytes, const LinkRates& rates);

// Seconds to send `bytes` from the node in `messages` messages one after another.
double network_seconds(double bytes, double messages, const LinkRates& rates);

}  // namespace nearstep::plan
