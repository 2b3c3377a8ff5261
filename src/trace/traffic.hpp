// Byte counters, one per link and kind. Every byte is counted where it moves.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nearstep::trace {

// On the host link, "read" means storage to host; on the device-internal link it means drive to
// engine. gpu_* count the part of internal_* that also crosses a GPU's link, because the GPU
// updates it. node_* count bytes between ranks of one node, network_* between nodes; the sender
// counts.
enum class Counter : std::size_t {
    host_state_read,
    host_state_write,
    host_gradients_read,
    host_gradients_write,
    host_parameters,
    host_masters_read,  // by a client whose parameters stay in storage
    internal_read,
    internal_write,
    network_gradients,
    network_parameters,
    node_gradients,
    node_parameters,
    gpu_state_read,
    gpu_state_write,
    gpu_parameters,  // new ones that a GPU wrote to its client's tensors, beside host_parameters
    checkpoint,      // state over the host link to initialise, export or restore; not in steps
};

constexpr std::size_t kCounters = static_cast<std::size_t>(Counter::checkpoint) + 1;

// A copy of the counters, in bytes.
struct TrafficSnapshot {
    std::array<std::uint64_t, kCounters> bytes{};

    std::uint64_t operator[](Counter counter) const {
        return bytes.at(static_cast<std::size_t>(counter));
    }
    TrafficSnapshot operator-(const TrafficSnapshot& earlier) const;
};

// Any thread may add.
class Traffic {
public:
    void add(Counter counter, std::size_t bytes) {
        bytes_.at(static_cast<std::size_t>(counter)).fetch_add(bytes, std::memory_order_relaxed);
    }
    TrafficSnapshot snapshot() const;

private:
    std::array<std::atomic<std::uint64_t>, kCounters> bytes_{};
};

}  // namespace nearstep::trace
