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
    const codec::Codec* sent = nullptr;      // to the owners
    const codec::Codec* of_nodes = nullptr;  // of nodes' sums to their joint group; null: none is
    const codec::Codec* sum_codec =
        nullptr;  // for the sum, to the devices; null: payloads unchanged

    const codec::Codec& to_devices() const { return sum_codec != nullptr ? *sum_codec : *sent; }
};

// A tile has one payload per group of placement.gradients. In a group of several nodes, these send
// dense sums to the rank that encodes the group's. The owner hands the payloads to its device
// unchanged or, with exchange.densify, adds them up and hands on one dense sum.
class GradientRoute {
public:
    GradientRoute(const config::EngineSettings& settings, Dtype dtype, const mpi::Topology& nodes);

    // The codecs of the step after `steps_done`.
    RouteCodecs of_step(std::int64_t steps_done) const;

    // Ranks of a node that add up gradients, and groups of several nodes that add these sums up,
    // too; empty: none do.
    const mpi::Topology& groups() const { return groups_; }
    const mpi::Topology& joint_groups() const { return joint_groups_; }
    // Number of payloads per tile that reach a device.
    int sources() const { return is_densified_ ? 1 : gradients_; }
    // Number of payloads per tile that reach its owner: groups that have gradients.
    int gradients() const { return gradients_; }
    // Number of payloads per tile that leave GPUs for one rank, of the joint group if there are
    // any.
    int first_payloads() const;
    bool is_dense_sum() const { return is_densified_; }
    // Whether GPUs and cards have the run's codec; if not, hosts encode and decode it.
    bool has_kernels() const { return codec_->kernel_form().has_value(); }

    // The most bytes that a payload has in any step's codec: on its way between ranks, and on its
    // way to a device.
    std::size_t most_sent_bytes() const;
    std::size_t most_handover_bytes() const;
    // Bytes per parameter after the warm-up: of one payload of the run's codec, and of all that a
    // device receives.
    double payload_bytes_per_parameter() const;
    double handover_bytes_per_parameter() const;

    // "owners hand their devices one dense sum of 4 payloads ..."; empty if payloads pass
    // unchanged.
    std::string describe(const config::EngineSettings& settings) const;

private:
    std::unique_ptr<codec::Codec> codec_;  // from the settings
    std::unique_ptr<codec::Codec> dense_;
    int computing_;  // ranks
    mpi::Topology groups_;
    mpi::Topology joint_groups_;
    int gradients_;
    std::int64_t warmup_steps_;
    bool is_densified_;
};

}  // namespace nearstep::engine
