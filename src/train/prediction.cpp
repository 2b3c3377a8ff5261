#include "train/prediction.hpp"

#include "base/dtype.hpp"
#include "csd/state_format.hpp"
#include "engine/devices.hpp"
#include "engine/gpu_traffic.hpp"
#include "engine/site_links.hpp"
#include "model/geometry.hpp"
#include "plan/calibration.hpp"
#include "plan/step_time.hpp"
#include "shard/partition.hpp"
#include "store/subgroup_header.hpp"
#include "train/link_formulas.hpp"

#include <algorithm>

namespace nearstep::train {

namespace {

// Rates of the site's links, whether or not links are shaped.
plan::LinkRates link_rates(const config::Run& run) {
    config::LinkSettings link = run.link;
    link.shape = true;
    const link::Rates rates = engine::rates_of(link);
    return {.device_read = rates.device_read,
            .device_write = rates.device_write,
            .host = rates.host,
            .host_total = rates.host_total,
            .updates = engine::update_rate_of(run),
            .network = rates.network,
            .network_latency_s = run.plan.network_latency_us * 1e-6};
}

int devices_of_node(const RunRecord& record) {
    return std::max(record.facts.devices / record.facts.nodes, 1);
}

// Bytes of one node.
plan::StepBytes step_bytes(const RunRecord& record) {
    const config::Run& run = record.run;
    const std::size_t tiles = shard::tiles_of(record.parameters);
    // A node's share of bytes that all nodes hold.
    const auto of_node = [&](std::size_t bytes) {
        return static_cast<double>(bytes) * record.facts.copies / record.facts.nodes;
    };
    const std::size_t parameters = tiles * shard::kTileElems;
    const std::size_t vector_bytes = parameters * size_bytes(run.model.dtype);
    const bool is_base = run.mode == config::Mode::base;
    plan::StepBytes bytes;
    bytes.parameters = of_node(parameters);
    bytes.state = of_node(csd::state_bytes(csd::parse_state_format(run.csd.state), tiles));
    if (!is_base) {  // base has one store with few subgroups
        bytes.state += devices_of_node(record) *
                       static_cast<double>(record.facts.most_subgroups * store::kHeaderBytes);
    }
    bytes.gradients = is_base ? of_node(parameters * sizeof(float))
                              : record.facts.handed_bytes_per_parameter * of_node(parameters);
    bytes.gradients_back = is_base ? bytes.gradients : 0;
    bytes.new_parameters = is_base ? 0 : of_node(vector_bytes);
    bytes.of_gpus = engine::gpu_bytes_of_node(run.link, record.ranks / record.facts.nodes,
                                              static_cast<double>(vector_bytes));
    bytes.gradient_messages =
        (record.facts.nodes - 1.0) * static_cast<double>(model::describe(run.model).blocks.size());
    bytes.parameter_messages =
        (record.facts.nodes - 1.0) * static_cast<double>(record.facts.most_subgroups);
    if (const auto volumes = formula_volumes(record)) {
        const double of_each = static_cast<double>(record.parameters) / record.facts.nodes;
        bytes.leaving_gradients = volumes->network_gradients * of_each;
        // Parameters spread over all ranks travel during forward and backward instead.
        bytes.leaving_parameters =
            run.placement.parameters == "global" ? 0 : volumes->network_parameters * of_each;
    }
    return bytes;
}

}  // namespace

PhaseSeconds predict(const RunRecord& record, const PhaseSeconds& unshaped) {
    const plan::LinkRates rates =
        link_rates(plan::calibrated(record.run, record.calibration, record.facts.nodes));
    const plan::StepBytes bytes = step_bytes(record);
    const int devices = devices_of_node(record);
    const bool is_base = record.run.mode == config::Mode::base;
    const auto handler = engine::handler_kind(record.run.mode) == csd::HandlerKind::naive
                             ? plan::Handler::serial
                             : plan::Handler::overlapped;
    const double gradients = is_base ? plan::base_gradient_seconds(bytes, rates, devices)
                                     : plan::gradient_seconds(bytes, rates);
    double update = is_base ? plan::base_update_seconds(bytes, rates, devices)
                            : plan::update_seconds(bytes, rates, handler, devices);
    if (handler == plan::Handler::serial) {
        update += plan::delivery_seconds(bytes, rates);
    } else if (!is_base) {
        update += plan::fill_seconds(bytes, rates, devices,
                                     static_cast<double>(record.facts.most_subgroups));
    }
    return {.forward = std::max(unshaped.forward, plan::gpu_forward_seconds(bytes, rates)),
            .backward = std::max(
                {unshaped.backward, gradients, plan::gpu_backward_seconds(bytes, rates),
                 plan::network_seconds(bytes.leaving_gradients, bytes.gradient_messages, rates)}),
            .update = std::max(update, plan::network_seconds(bytes.leaving_parameters,
                                                             bytes.parameter_messages, rates))};
}

std::optional<PhaseSeconds> expect_of_links(const RunRecord& record) {
    config::LinkSettings link =
        plan::calibrated(record.run, record.calibration, record.facts.nodes).link;
    link.shape = true;
    return link.are_shaped() ? std::optional(predict(record, {})) : std::nullopt;
}

double expected_storage_bytes(const RunRecord& record) {
    const plan::StepBytes bytes = step_bytes(record);
    const double gradients = record.run.mode == config::Mode::base ? 2 * bytes.gradients : 0;
    return record.facts.nodes * (2 * bytes.state + gradients);
}

std::optional<double> least_update_seconds(const RunRecord& record) {
    const bool is_calibrated = record.calibration.device(record.run.csd) != nullptr;
    const config::LinkSettings& site = record.run.link;
    if (!is_calibrated &&
        !(site.shape && (site.device_read_gb_s > 0 || site.device_write_gb_s > 0))) {
        return std::nullopt;
    }
    const plan::LinkRates rates =
        link_rates(plan::calibrated(record.run, record.calibration, record.facts.nodes));
    const plan::StepBytes bytes = step_bytes(record);
    const int devices = devices_of_node(record);
    return record.run.mode == config::Mode::base
               ? plan::base_update_seconds(bytes, rates, devices)
               : plan::update_seconds(bytes, rates, plan::Handler::overlapped, devices);
}

}  // namespace nearstep::train
