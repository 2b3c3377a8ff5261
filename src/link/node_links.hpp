// The links of a node: what all its ranks and devices share, and what each drive has for itself.
#pragma once

#include "link/clock.hpp"
#include "link/link.hpp"
#include "link/shared_times.hpp"

#include <atomic>
#include <cstddef>
#include <deque>

namespace nearstep::link {

// Bytes per second; 0: not shaped.
struct Rates {
    double device_read = 0;  // of a device's drive, on the link inside the device
    double device_write = 0;
    double host = 0;        // of the host link, either direction by itself
    double host_total = 0;  // of the host link, both directions together
    double network = 0;     // out of the node

    bool are_shaped() const {
        return device_read > 0 || device_write > 0 || host > 0 || host_total > 0 || network > 0;
    }
};

// What the transfers of one drive cross.
struct DrivePaths {
    Path read;
    Path write;
};

// near_engine: the drive of a CSD, whose engine reads and writes it without the host.
// behind_host_link: a plain drive.
enum class DrivePlace { near_engine, behind_host_link };

// Of one process. The paths are valid as long as this is.
class NodeLinks {
public:
    // `times`: those that all processes of the node have. The clock outlives this.
    NodeLinks(const Rates& rates, SharedTimes times, const Clock& clock);

    const Clock& clock() const { return clock_; }

    const Path& to_host() const { return to_host_; }  // from the devices over the host link
    const Path& to_storage() const { return to_storage_; }
    const Path& network() const { return network_; }  // from this node to the others

    // A further drive of this process. Not while another thread calls this.
    DrivePaths add_drive(DrivePlace place);

private:
    // Nothing if the rate is 0.
    void add(double rate, std::atomic<Time>& free_at, Path& path);

    Rates rates_;
    SharedTimes times_;
    const Clock& clock_;
    std::deque<Link> links_;  // deques: their elements stay where they are
    std::deque<std::atomic<Time>> own_times_;
    Path to_host_;
    Path to_storage_;
    Path network_;
};

}  // namespace nearstep::link
