#include "train/run_plan.hpp"

#include "config/placement.hpp"
#include "model/geometry.hpp"

#include <algorithm>

namespace nearstep::train {

namespace {

plan::Mesh mesh_of(config::Sharding sharding, int ranks_per_node, int nodes) {
    switch (sharding) {
        case config::Sharding::replicated:
            return {.gpus = 1, .nodes = 1};
        case config::Sharding::node:
            return {.gpus = ranks_per_node, .nodes = 1};
        case config::Sharding::global:
            return {.gpus = ranks_per_node, .nodes = nodes};
    }
    return {};
}

plan::Choice choice_of(const RunRecord& record) {
    const config::Placement placement = config::placement_of(record.run);
    const auto mesh = [&](config::Sharding sharding) {
        return mesh_of(sharding, record.ranks / record.facts.nodes, record.facts.nodes);
    };
    return {
        .codec = plan::parse_codec(record.run.compress.codec),
        .gather = record.run.gather.codec == "delta" ? plan::Gather::delta : plan::Gather::dense,
        .parameters = mesh(placement.parameters),
        .home = plan::Home::host,
        .gradients = mesh(placement.gradients),
        .scatter = placement.gradients == config::Sharding::replicated
                       ? plan::Scatter::flat
                       : plan::Scatter::hierarchical,
        .optimizer = mesh(placement.optimizer),
        .handover = record.facts.has_dense_sums ? plan::Handover::dense : plan::Handover::raw,
        .subgroup_tiles = static_cast<std::size_t>(record.run.csd.subgroup_tiles),
        .slots = record.run.csd.slots > 0 ? record.run.csd.slots : config::kLeastSlots};
}

}  // namespace

RunPlan run_plan_of(const RunRecord& record) {
    const engine::EngineFacts& facts = record.facts;
    plan::Problem problem;
    problem.work = plan::workload_of(
        record.run,
        {.parameters = record.parameters,
         .blocks = static_cast<int>(model::describe(record.run.model).blocks.size())},
        1);
    problem.site.gpus = record.ranks / facts.nodes;
    problem.site.csds = std::max(facts.devices / facts.nodes, 1);
    problem.site.delta_bytes = record.run.plan.delta_bytes;
    problem.nodes = facts.nodes;
    return {.problem = problem, .choice = choice_of(record)};
}

}  // namespace nearstep::train
