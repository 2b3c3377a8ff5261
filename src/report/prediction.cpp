// Compares a run with the planner's model of it. Used by the trainer before the first step, and by
// tables of traffic and of comparisons.
#include "report/prediction.hpp"

#include "base/dtype.hpp"
#include "csd/state_format.hpp"
#include "model/geometry.hpp"
#include "plan/calibration.hpp"
#include "plan/cost.hpp"
#include "plan/formulas.hpp"
#include "plan/link_rates.hpp"
#include "shard/partition.hpp"
#include "store/subgroup_header.hpp"

#include <algorithm>
#include <limits>

namespace nearstep::report {

namespace {

int computing_ranks(const RunRecord& record) {
    return config::computing_ranks(record.run, record.ranks);
}

plan::Choice choice_of(const RunRecord& record) {
    const trace::RunFacts& facts = record.facts;
    const int of_node = computing_ranks(record) / facts.nodes;
    return {.codec = record.run.compress.codec,
            .gather = record.run.gather.codec,
            .parameters = plan::mesh_of(facts.parameter_ranks, of_node),
            .home = plan::Home::host,
            .gradients = plan::mesh_of(facts.gradient_ranks, of_node),
            .scatter =
                facts.gradient_ranks < of_node ? plan::Scatter::flat : plan::Scatter::hierarchical,
            .optimizer = plan::mesh_of(facts.optimizer_ranks, of_node),
            .handover = record.facts.has_dense_sums ? plan::Handover::dense : plan::Handover::raw,
            .shares = {.gpu = facts.gpu_share, .memory = facts.memory_share},
            .subgroup_tiles = static_cast<std::size_t>(record.run.csd.subgroup_tiles)};
}

double homes(const RunRecord& record) { return run_plan_of(record).problem.homes(); }

// Bytes of the state in all of its copies.
double state_of_copies(const RunRecord& record) {
    const std::size_t tiles = shard::tiles_of(record.parameters);
    return record.facts.copies * static_cast<double>(csd::state_bytes(record.run.csd.state, tiles));
}

// The part of the state that a step reads; the devices keep the rest.
double read_share(const RunRecord& record) {
    return std::max(1 - record.facts.kept_bytes / state_of_copies(record), 0.0);
}

// The run with the rates of the site's links, whether or not links are shaped. Compute takes no
// time, because a run knows that of its own.
RunPlan plan_with_rates(const RunRecord& record) {
    const config::RunSettings run =
        plan::calibrated(record.run, record.calibration, record.facts.all_nodes());
    config::LinkSettings link = run.link;
    link.scale = link.factor();
    const shaping::Rates rates = plan::rates_of(link);
    const auto or_no_limit = [](double rate) {
        return rate > 0 ? rate : std::numeric_limits<double>::infinity();
    };
    RunPlan of_run = run_plan_of(record);
    // Whole tiles travel.
    of_run.problem.work.model.parameters = shard::tiles_of(record.parameters) * shard::kTileElems;
    plan::Site& site = of_run.problem.site;
    site.gpu_operations = or_no_limit(0);
    site.gpu_link = or_no_limit(0);
    site.host_link = or_no_limit(rates.host);
    site.host_link_total = rates.host_total;
    site.device_read = or_no_limit(rates.device_read) / read_share(record);
    site.device_write = or_no_limit(rates.device_write);
    site.device_updates = plan::update_rate_of(run);
    site.network = or_no_limit(rates.network);
    site.latency_s = run.plan.network_latency_us * 1e-6;
    return of_run;
}

// A node's share of bytes that all copies of the state hold together.
double of_node(const RunRecord& record, std::size_t bytes) {
    return static_cast<double>(bytes) * record.facts.copies / homes(record);
}

// Bytes of a node's state, and of its gradients, which mode base writes and reads, too.
double state_of_node(const RunRecord& record) {
    const double state = state_of_copies(record) / homes(record);
    const bool is_base = record.run.mode == config::Mode::base;  // one store with few subgroups
    const double headers = static_cast<double>(record.facts.most_subgroups * store::kHeaderBytes) *
                           record.facts.devices / homes(record);
    return state + (is_base ? 0 : headers);
}

double gradients_of_base(const RunRecord& record) {
    return of_node(record, shard::tiles_of(record.parameters) * shard::kTileElems * sizeof(float));
}

// Seconds of the links alone.
PhaseSeconds seconds_of_base(const RunRecord& record, const plan::Site& site) {
    const double gradients = gradients_of_base(record);
    return {.backward = plan::base_gradient_seconds(site, gradients),
            .update = plan::base_update_seconds(site, state_of_node(record), gradients)};
}

PhaseSeconds seconds_of_devices(const RunPlan& of_run) {
    const plan::Terms terms = plan::cost_of(of_run.problem, of_run.choice).terms;
    // A serial device delivers its new parameters after everything else.
    const double serial = std::max(terms.csd + terms.up, terms.gather);
    return {.backward = std::max(terms.down, terms.scat),
            .update = of_run.problem.work.is_serial ? serial : terms.opt};
}

}  // namespace

RunPlan run_plan_of(const RunRecord& record) {
    const trace::RunFacts& facts = record.facts;
    plan::Problem problem;
    problem.work = plan::workload_of(
        record.run,
        {.parameters = record.parameters,
         .blocks = static_cast<int>(model::describe(record.run.model).blocks.size())},
        1);
    problem.nodes = facts.nodes;
    problem.storage_nodes = facts.storage_nodes;
    problem.site.gpus = computing_ranks(record) / facts.nodes;
    problem.site.csds = std::max(facts.drives / facts.nodes, 1);
    if (facts.storage_nodes > 0) {
        problem.site.csds = facts.storage_drives / facts.storage_nodes;
        problem.site.csds_beside = facts.drives / facts.nodes;
    }
    problem.site.delta_bytes = record.run.plan.delta_bytes;
    return {.problem = problem, .choice = choice_of(record)};
}

PhaseSeconds predict(const RunRecord& record, const PhaseSeconds& unshaped) {
    const RunPlan of_run = plan_with_rates(record);
    const plan::Site& site = of_run.problem.site;
    const bool is_base = record.run.mode == config::Mode::base;
    const PhaseSeconds links = is_base ? seconds_of_base(record, site) : seconds_of_devices(of_run);
    const std::size_t parameters = shard::tiles_of(record.parameters) * shard::kTileElems;
    const auto vector_bytes = static_cast<double>(parameters * size_bytes(record.run.model.dtype));
    const double of_gpus = plan::gpu_bytes_of_node(record.run.link, site.gpus, vector_bytes);
    const double of_gradients =
        (is_base ? sizeof(float) : record.facts.handover_bytes_per_parameter) *
        of_node(record, parameters);
    return {.forward = std::max(unshaped.forward, plan::gpu_forward_seconds(site, of_gpus)),
            .backward = std::max({unshaped.backward, links.backward,
                                  plan::gpu_backward_seconds(site, of_gpus, of_gradients)}),
            .update = links.update};
}

std::optional<PhaseSeconds> expect_of_links(const RunRecord& record) {
    config::LinkSettings link =
        plan::calibrated(record.run, record.calibration, record.facts.all_nodes()).link;
    link.scale = link.factor();
    return link.are_shaped() ? std::optional(predict(record, {})) : std::nullopt;
}

double expected_storage_bytes(const RunRecord& record) {
    const double gradients =
        record.run.mode == config::Mode::base ? 2 * gradients_of_base(record) : 0;
    return homes(record) * (2 * state_of_node(record) + gradients) - record.facts.kept_bytes -
           record.facts.unwritten_bytes;
}

std::optional<double> least_update_seconds(const RunRecord& record) {
    const bool is_calibrated = record.calibration.device(record.run.csd) != nullptr;
    const config::LinkSettings& site = record.run.link;
    if (!is_calibrated &&
        !(site.scale > 0 && (site.device_read_gb_s > 0 || site.device_write_gb_s > 0))) {
        return std::nullopt;
    }
    RunPlan of_run = plan_with_rates(record);
    if (record.run.mode == config::Mode::base) {
        return seconds_of_base(record, of_run.problem.site).update;
    }
    // Everything overlaps, and slots are no limit.
    of_run.problem.work.is_serial = false;
    of_run.problem.work.slots = std::numeric_limits<int>::max();
    const plan::Terms terms = plan::cost_of(of_run.problem, of_run.choice).terms;
    return std::max(terms.csd, terms.up);
}

}  // namespace nearstep::report
