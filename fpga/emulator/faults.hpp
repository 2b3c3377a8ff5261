// Faults and readings of emulated cards on demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace nearstep::emulator {

// What a fault happens to is counted from 1, by card and kind.
enum class FaultKind {
    lost_completion,  // a run is carried out and never reported
    run_error,        // a run ends in error and changes nothing
    late_completion,  // a run is reported `value` milliseconds late
    no_memory,        // an allocation fails
    no_p2p,           // an allocation of a peer-to-peer buffer fails
    lost_sync,        // a synchronisation moves nothing, as if the host had forgotten it
};

// "lost_completion=CARD:NTH", several separated by commas; "late_completion=CARD:NTH:MS";
// "temperature=CARD:CELSIUS" sets a reading. NTH 0: every one. Any thread may call.
class Faults {
public:
    // Throws std::invalid_argument naming the part that it cannot read.
    void plan(const std::string& list);

    // One more of its kind happens on the card: 0 if it goes well, else the fault's value (1 if
    // it has none).
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
    std::map<unsigned, std::uint64_t> temperatures_;
};

}  // namespace nearstep::emulator
