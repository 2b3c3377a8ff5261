// How a device keeps its state between steps, and what that takes. A run and its plan ask here.
#pragma once

#include <cstddef>
#include <string>

namespace nearstep::csd {

// twice: each subgroup has two places of its own, and a step writes the older one. once: the
// subgroups share a few spare places, as in folders in memory, and on drives where no step is
// durable. logged: all state is in memory, and a drive has logs of gradients and the state that
// each step writes a part of.
enum class Keeping { twice, once, logged };

// Logs of a device with Keeping::logged, which has as many as a restart may repeat steps.
constexpr std::size_t kUsualLogs = 16;
constexpr std::size_t kLeastLogs = 2;
constexpr std::size_t kMostLogs = 64;

// The logs for which `room_bytes` suffice, if each takes `log_bytes`; kUsualLogs if the room is 0.
// Less than kLeastLogs are too few.
std::size_t logs_within(double room_bytes, double log_bytes);

// Spare places of a device with Keeping::once, of a rank with so many devices.
std::size_t spare_places_of_device(int devices);

// A device with Keeping::logged, whose subgroups have places of one size.
struct LoggedState {
    std::size_t subgroups = 0;
    std::size_t place_bytes = 0;  // of a subgroup's state with its header
    std::size_t log_bytes = 0;    // of each log
    std::size_t logs = kUsualLogs;

    std::size_t memory_bytes() const { return subgroups * place_bytes; }
    // A step writes every K-th subgroup, and those that it writes need places beside the old ones.
    std::size_t spare_places() const { return (subgroups + logs - 1) / logs; }
    std::size_t state_bytes() const { return (subgroups + spare_places()) * place_bytes; }
    std::size_t all_log_bytes() const { return logs * log_bytes; }
    // Bytes that a step writes on average: of state, and of its log.
    std::size_t state_bytes_of_step() const { return memory_bytes() / logs; }
    std::size_t step_bytes() const { return state_bytes_of_step() + log_bytes; }
};

// "a device keeps 28 GB of state in memory and has 16 logs of 3.5 GB; a step writes one of them and
// 1.75 GB of the state, so that a restart repeats at most 16 steps".
std::string describe(const LoggedState& device);

}  // namespace nearstep::csd
