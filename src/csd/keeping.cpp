// Counts logs and spare places of a device. Used by a run's start and by plans.
#include "csd/keeping.hpp"

#include "base/error.hpp"
#include "base/units.hpp"

#include <algorithm>

namespace nearstep::csd {

std::size_t logs_within(double room_bytes, double log_bytes) {
    if (room_bytes <= 0 || log_bytes <= 0) {
        return kUsualLogs;
    }
    return static_cast<std::size_t>(
        std::min(room_bytes / log_bytes, static_cast<double>(kMostLogs)));
}

std::size_t spare_places_of_device(int devices) {
    // A rank has this many subgroups in work at once. With compact state and 16 tiles each, the
    // default of csd.subgroup_tiles, 64 places take 270 MB.
    constexpr int kOfRank = 64;
    constexpr int kLeastOfDevice = 8;
    return static_cast<std::size_t>(std::max(kLeastOfDevice, kOfRank / std::max(devices, 1)));
}

std::string describe(const LoggedState& device) {
    return text("a device keeps ", human_bytes(static_cast<double>(device.memory_bytes())),
                " of state in memory and has ", device.logs, " logs of ",
                human_bytes(static_cast<double>(device.log_bytes)),
                "; a step writes one of them and ",
                human_bytes(static_cast<double>(device.state_bytes_of_step())),
                " of the state, so that a restart repeats at most ", device.logs, " steps");
}

}  // namespace nearstep::csd
