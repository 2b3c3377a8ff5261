// Formulas that several parts of the planner share. Used there and by the engine's route.
#include "plan/formulas.hpp"

#include "codec/codec.hpp"

#include <algorithm>

namespace nearstep::plan {

namespace {

// `most`: in the fuller direction; `both`: in both together.
double link_seconds(const Site& site, double most, double both) {
    return std::max(seconds(most, site.host_link), seconds(both, site.host_link_total));
}

}  // namespace

double bulk_seconds(const Site& site, double bytes, double nodes) {
    return seconds(bytes, site.network) * (1 + site.bulk_loss * (nodes - 1));
}

double layer_seconds(const Site& site, double bytes, double nodes) {
    return seconds(bytes, site.network) * (1 + site.layer_loss * (nodes - 1));
}

double payload_bytes(Codec codec, double keep, double element_bytes) {
    return codec == Codec::dense || codec == Codec::automatic
               ? element_bytes
               : codec::bytes_per_parameter({.name = config::name_of(codec), .keep = keep});
}

double handover_bytes(Handover handover, Codec codec, double lists, double keep,
                      double element_bytes) {
    switch (handover) {
        case Handover::raw:
            return lists * payload_bytes(codec, keep, element_bytes);
        case Handover::dense:
            return element_bytes;
    }
    return element_bytes;
}

double DeviceTime::per_parameter(bool is_serial, int slots) const {
    return is_serial
               ? read + engine + write
               : std::max({read, engine, write, both, (read + engine + write + deliver) / slots});
}

DeviceTime device_time(const Problem& problem, double memory_bytes, double new_bytes) {
    const Site& site = problem.site;
    const double state = problem.work.state_bytes;
    DeviceTime time;
    time.read = state / site.device_read;
    time.write = state / site.device_write;
    time.both = seconds(2 * state, site.device_total);
    // All data passes the device's memory twice: in and out.
    const double memory =
        seconds(2 * (2 * state + memory_bytes + new_bytes), site.device_memory_rate);
    time.engine = std::max(seconds(1, site.device_updates), memory);
    time.deliver =
        std::max(seconds(new_bytes, site.device_link), new_bytes * site.csds / site.host_link);
    return time;
}

double crossover_nodes(double network, double gather_bytes, int csds, double parameters_per_s) {
    return 1 + network / (gather_bytes * csds * parameters_per_s);
}

double base_update_seconds(const Site& site, double state, double gradients) {
    const double read = state + gradients;
    return std::max({seconds(read, site.device_read) / site.csds,
                     seconds(state, site.device_write) / site.csds,
                     link_seconds(site, read, read + state)});
}

double base_gradient_seconds(const Site& site, double gradients) {
    return std::max(link_seconds(site, gradients, gradients),
                    seconds(gradients, site.device_write) / site.csds);
}

double gpu_forward_seconds(const Site& site, double of_gpus) {
    return link_seconds(site, of_gpus, of_gpus);
}

double gpu_backward_seconds(const Site& site, double of_gpus, double gradients) {
    const double down = of_gpus + gradients;
    return link_seconds(site, down, down + of_gpus);
}

}  // namespace nearstep::plan
