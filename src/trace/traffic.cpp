// Adds up byte counters. Used by devices, exchanges and reports.
#include "trace/traffic.hpp"

namespace nearstep::trace {

TrafficSnapshot TrafficSnapshot::operator-(const TrafficSnapshot& earlier) const {
    TrafficSnapshot difference;
    for (std::size_t i = 0; i < kCounters; ++i) {
        difference.bytes.at(i) = bytes.at(i) - earlier.bytes.at(i);
    }
    return difference;
}

TrafficSnapshot Traffic::snapshot() const {
    TrafficSnapshot copy;
    for (std::size_t i = 0; i < kCounters; ++i) {
        copy.bytes.at(i) = bytes_.at(i).load(std::memory_order_relaxed);
    }
    return copy;
}

}  // namespace nearstep::trace
