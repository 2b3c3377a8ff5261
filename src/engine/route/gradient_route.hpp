// How gradients travel: encoded to the owners, and from there to the owners' devices.
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

// The codecs of a step.
struct RouteCodecs {
    const codec::Codec* sent = nullptr;    // to the owners
    const codec::Codec* handed = nullptr;  // for the sum, to the devices; null: payloads unchanged
};

// A tile has one payload per group. The owner hands them to its device unchanged, or adds them up
// and hands on one sum. The sum is encoded by the run's codec if gradients are summed over all
// ranks before encoding (placement.gradients = "global", sent dense). It is dense with
// exchange.densify.
class GradientRoute {
public:
    GradientRoute(const config::EngineSettings& settings, Dtype dtype, const mpi::Topology& nodes);

    // The codecs of the step after `steps_done`.
    RouteCodecs of_step(std::int64_t steps_done) const;

    const mpi::Topology& groups() const { return groups_; }
    // Number of payloads per tile that reach a device.
    int sources() const { return has_sum_ ? 1 : gradients_; }
    // Number of payloads per tile that reach its owner: groups that have gradients.
    int gradients() const { return gradients_; }
    bool is_dense_sum() const { return is_densified_; }
    // Whether GPUs and cards have the run's codec; if not, hosts encode and decode it.
    bool has_kernels() const { return codec_->kernel_form().has_value(); }

    std::size_t most_sent_bytes() const;
    std::size_t most_handed_bytes() const;
    // Bytes per parameter after the warm-up: of one payload of the run's codec, and of all that a
    // device receives.
    double payload_bytes_per_parameter() const;
    double handed_bytes_per_parameter() const;

    // "owners hand their devices one dense sum of 4 payloads ..."; empty if payloads pass
    // unchanged.
    std::string describe(const config::EngineSettings& settings) const;

private:
    std::unique_ptr<codec::Codec> codec_;  // from the settings
    std::unique_ptr<codec::Codec> dense_;
    mpi::Topology groups_;
    int gradients_;
    std::int64_t warmup_steps_;
    bool is_summed_densely_;  // over all ranks, before encoding
    bool is_densified_ = false;
    bool has_sum_ = false;  // owners hand on sums
};

}  // namespace nearstep::engine
