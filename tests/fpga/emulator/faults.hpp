// Faults and sensor values of emulated cards, on demand.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace nearstep::emulator {

// Each card counts its events of each kind from 1.
enum class FaultKind {
    lost_completion,  // a run executes but is never reported
    run_error,        // a run ends in error and changes nothing
    late_completion,  // a run is reported `value` milliseconds late
    no_memory,        // an allocation fails
    no_p2p,           // an allocation of a peer-to-peer buffer fails
    lost_sync,        // a synchronisation moves nothing, as if the host forgot it
    temperature       // of the card, with the degrees in place of a count
};

// The list is "lost_completion=CARD:NTH", or several separated by commas.
// "late_completion=CARD:NTH:MS" has a delay. "temperature=CARD:CELSIUS" sets a sensor value. NTH 0
// means every event. Any thread may call.
class Faults {
public:
    // Throws std::invalid_argument naming the part that cannot be parsed.
    void plan(const std::string& list);

    // Counts one event on the card. Returns 0 if it succeeds, else the fault's value (1 if it has
    // none).
    std::uint64_t next(FaultKind kind, unsigned card);

    std::uint64_t temperature(unsigned card);

private:
    struct Planned {
        FaultKind kind;
        unsigned card;
        std::uint64_t nth;
        std::uint64_t value;
    };

    std::mutex mutex_;
    std::vector<Planned> planned_;
    std::map<std::pair<FaultKind, unsigned>, std::uint64_t> counts_;
};

}  // namespace nearstep::emulator
