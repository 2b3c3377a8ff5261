// Makes the shaped links of a node. Used by the engine, which gives them to devices and exchanges.
#include "shaping/node_links.hpp"

#include <span>
#include <utility>

namespace nearstep::shaping {

namespace {

// Indices into the shared times.
constexpr std::size_t kToHost = 0;
constexpr std::size_t kToStorage = 1;
constexpr std::size_t kHostTotal = 2;
constexpr std::size_t kNetwork = 3;

}  // namespace

NodeLinks::NodeLinks(const Rates& rates, memory::Buffer times, const Clock& clock)
    : rates_(rates), times_(std::move(times)), clock_(clock), pacer_(clock) {
    const std::span<std::atomic<Time>> free_at = times_.as<std::atomic<Time>>();
    add(rates.host, free_at[kToHost], to_host_);
    add(rates.host, free_at[kToStorage], to_storage_);
    Path both;
    add(rates.host_total, free_at[kHostTotal], both);
    to_host_.insert(to_host_.end(), both.begin(), both.end());
    to_storage_.insert(to_storage_.end(), both.begin(), both.end());
    add(rates.network, free_at[kNetwork], network_);
}

void NodeLinks::add(double rate, std::atomic<Time>& free_at, Path& path) {
    if (rate > 0) {
        path.push_back(&links_.emplace_back(rate, free_at));
    }
}

DrivePaths NodeLinks::add_drive(DrivePlace place) {
    DrivePaths paths;
    add(rates_.device_read, own_times_.emplace_back(0), paths.read);
    add(rates_.device_write, own_times_.emplace_back(0), paths.write);
    if (place == DrivePlace::behind_host_link) {
        paths.read.insert(paths.read.end(), to_host_.begin(), to_host_.end());
        paths.write.insert(paths.write.end(), to_storage_.begin(), to_storage_.end());
    }
    return paths;
}

}  // namespace nearstep::shaping
