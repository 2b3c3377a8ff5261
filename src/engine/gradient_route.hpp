// How the gradients of a run travel: encoded to the owners, and from these to their devices.
#pragma once

#include "base/dtype.hpp"
#include "codec/codec.hpp"
#include "config/engine_settings.hpp"
#include "mpi/topology.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace nearstep::engine {

// What a step encodes with.
struct RouteCodecs {
    const codec::Codec* sent = nullptr;    // to the owners
    const codec::Codec* handed = nullptr;  // their sum, to the devices; null: as they came
};

// The payloads of a tile, one per group, are handed to the device as they came, or added up by the
// owner and handed on as one: encoded by the run's codec where gradients are added up over all
// ranks before they are encoded (placement.gradients = "global": then they are sent dense), or
// dense (exchange.densify).
class GradientRoute {
public:
    GradientRoute(const config::EngineSettings& settings, Dtype dtype, const mpi::Topology& nodes);

    // Of the step that comes after `steps_done`.
    RouteCodecs of_step(std::int64_t steps_done) const;

    const mpi::Topology& groups() const { return groups_; }
    // Payloads of a tile that reach a device.
    int sources() const { return has_sum_ ? 1 : groups_.groups(); }
    bool is_dense_sum() const { return is_densified_; }

    std::size_t most_sent_bytes() const;
    std::size_t most_handed_bytes() const;
    // Bytes per parameter after the warm-up: of a payload of the run's codec, and of all that a
    // device is handed.
    double payload_bytes_per_parameter() const;
    double handed_bytes_per_parameter() const;

    // "owners hand their devices one dense sum of 4 payloads ..."; empty where they hand on what
    // came.
    std::string describe(const config::EngineSettings& settings) const;

private:
    std::unique_ptr<codec::Codec> codec_;  // of the run
    std::unique_ptr<codec::Codec> dense_;
    mpi::Topology groups_;
    std::int64_t warmup_steps_;
    bool is_summed_densely_;  // over all ranks, before it is encoded
    bool is_densified_ = false;
    bool has_sum_ = false;  // owners hand on sums
};

}  // namespace nearstep::engine
