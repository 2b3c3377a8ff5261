// The links of a node: those shared by all its ranks and devices, and those of each drive.
#pragma once

#include "memory/buffer.hpp"
#include "shaping/clock.hpp"
#include "shaping/link.hpp"
#include "shaping/pacer.hpp"

#include <atomic>
#include <cstddef>
#include <deque>

namespace nearstep::shaping {

// Bytes per second; 0: no limit.
struct Rates {
    double device_read = 0;  // of a device's drive, on the device-internal link
    double device_write = 0;
    double host = 0;        // host link, each direction
    double host_total = 0;  // host link, both directions together
    double network = 0;     // out of the node

    bool are_shaped() const {
        return device_read > 0 || device_write > 0 || host > 0 || host_total > 0 || network > 0;
    }
};

// The paths of one drive's transfers.
struct DrivePaths {
    Path read;
    Path write;
};

// near_engine: a CSD's drive, which its engine accesses without the host. behind_host_link: a plain
// drive.
enum class DrivePlace { near_engine, behind_host_link };

// One per process. The paths are valid as long as this object.
class NodeLinks {
public:
    static constexpr std::size_t kTimesBytes = 4096;

    // `times`: kTimesBytes of zeros that all processes of the node share. They hold no locks, so a
    // killed process does not block the others. The clock outlives this.
    NodeLinks(const Rates& rates, memory::Buffer times, const Clock& clock);

    const Clock& clock() const { return clock_; }

    const Path& to_host() const { return to_host_; }  // from the devices over the host link
    const Path& to_storage() const { return to_storage_; }
    const Path& network() const { return network_; }  // from this node to the others

    // Delays the drives' transfers to the rates of their links.
    Pacer& pacer() { return pacer_; }

    // Adds a drive of this process. No other thread may call this object meanwhile.
    DrivePaths add_drive(DrivePlace place);

private:
    // Does nothing if the rate is 0.
    void add(double rate, std::atomic<Time>& free_at, Path& path);

    Rates rates_;
    memory::Buffer times_;
    const Clock& clock_;
    std::deque<Link> links_;  // deques: their elements stay where they are
    std::deque<std::atomic<Time>> own_times_;
    Path to_host_;
    Path to_storage_;
    Path network_;
    Pacer pacer_;  // last, so that its thread ends before what it uses
};

}  // namespace nearstep::shaping
