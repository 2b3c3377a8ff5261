// What a step should take on links of given rates: one node, its devices alike, one GPU or host.
#pragma once

namespace nearstep::plan {

// Bytes per second; 0: never the limit.
struct LinkRates {
    double device_read = 0;  // of one device
    double device_write = 0;
    double host = 0;        // of the node's host link, either direction by itself
    double host_total = 0;  // both directions together
    double updates = 0;     // parameters per second of one device's engine
    double network = 0;     // from the node to the others
    double network_latency_s = 0;
};

// What one step moves, in bytes.
struct StepBytes {
    double parameters = 0;      // how many there are
    double state = 0;           // read, and the same written
    double gradients = 0;       // to storage or to the devices
    double gradients_back = 0;  // base alone reads them again in the update
    double new_parameters = 0;  // over the host link after the update; none in base
    // Parameters to the node's GPUs in forward; in backward the same, and as many gradients back.
    double of_gpus = 0;
    double leaving_gradients = 0;   // to other nodes, in backward
    double leaving_parameters = 0;  // to other nodes, in the update
    // To each of the other nodes one after another, as T_scat and T_gather have them.
    double gradient_messages = 0;
    double parameter_messages = 0;
};

// serial: read, update and write one after another (su). overlapped: at once (su+o and su+o+c).
enum class Handler { serial, overlapped };

// T_opt of the formula below: the update with one device, new parameters left out.
double update_seconds_of_one(const StepBytes& bytes, const LinkRates& rates, Handler handler);

// The replication's formula for n devices near storage,
//     T_opt,n = max(T_opt / n, T_param_swap / min(n, B_PCIe / B_SSD)),
// with T_param_swap the new parameters' way to the host from one device, at the rate its drive is
// read with (B_SSD), and B_PCIe that of the host link.
double update_seconds(const StepBytes& bytes, const LinkRates& rates, Handler handler, int devices);

// Beside that, what n overlapped devices with so many subgroups each take for what nothing hides:
// the first subgroup's parts before the slowest one, the last one's behind it.
double fill_seconds(const StepBytes& bytes, const LinkRates& rates, int devices, double subgroups);

// The new parameters' way over the host link, which the serial handler does not hide and the
// formula leaves out: the devices are in step, so that they deliver at the same time.
double delivery_seconds(const StepBytes& bytes, const LinkRates& rates);

// Mode base, of which the formula does not speak: reads and writes of all drives at once, both over
// the host link.
double base_update_seconds(const StepBytes& bytes, const LinkRates& rates, int devices);

// The gradients' way to the devices, which backward hides as far as it lasts; in base they are
// written to the drives.
double gradient_seconds(const StepBytes& bytes, const LinkRates& rates);
double base_gradient_seconds(const StepBytes& bytes, const LinkRates& rates, int devices);

// Where GPUs share the devices' host link: their own traffic, and in backward the gradients' way to
// the devices, which has the direction of the parameters' to the GPUs.
double gpu_forward_seconds(const StepBytes& bytes, const LinkRates& rates);
double gpu_backward_seconds(const StepBytes& bytes, const LinkRates& rates);

// Of bytes that leave the node in so many messages one after another.
double network_seconds(double bytes, double messages, const LinkRates& rates);

}  // namespace nearstep::plan
