// Formulas that several parts of the planner share. Used there and by the engine's route.
#include "plan/formulas.hpp"

#include "codec/codec.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::plan {

namespace {

constexpr double kEntryBytes = 4;  // of a list entry: a 16-bit index and a 16-bit value

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

double union_share(double keep, double lists) { return 1 - std::pow(1 - keep, lists); }

double handed_bytes(Handover handover, Codec codec, double lists, double keep,
                    double element_bytes) {
    switch (handover) {
        case Handover::raw:
            return lists * payload_bytes(codec, keep, element_bytes);
        case Handover::merged:
            return union_share(keep, lists) * kEntryBytes;
        case Handover::dense:
            return element_bytes;
    }
    return element_bytes;
}

double DeviceTime::per_parameter(bool is_serial, int slots) const {
    return is_serial ? read + engine + write
                     : std::max({read, engine, write, (read + engine + write + deliver) / slots});
}

DeviceTime device_time(const Problem& problem, double flash_bytes, double memory_bytes,
                       double new_bytes) {
    const Site& site = problem.site;
    const double state = problem.work.state_bytes;
    DeviceTime time;
    time.read = (state + flash_bytes) / site.device_read;
    time.write = state / site.device_write;
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

}  // namespace nearstep::plan
