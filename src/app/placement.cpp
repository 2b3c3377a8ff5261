// Asks the planner where placements are "auto". Used by the commands train and plan.
#include "app/placement.hpp"

#include "base/error.hpp"
#include "engine/placement/devices.hpp"
#include "model/geometry.hpp"
#include "plan/kept_state.hpp"
#include "plan/plan_report.hpp"
#include "plan/tier_times.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace nearstep::app {

namespace {

// Replaces the placements that are automatic by the plan's choice, and bounds such tiers by it.
config::RunSettings with_choice(config::Sources sources, const config::RunSettings& asked,
                                const plan::Problem& problem, const plan::Choice& choice) {
    const auto take = [&](const char* key, const config::GroupSize& of_run,
                          const plan::Mesh& of_plan) {
        if (of_run.is_automatic()) {
            sources.overrides.push_back(text(key, "=", of_plan.size()));
        }
    };
    const config::Placement& placement = asked.placement;
    take("placement.parameters", placement.parameters, choice.parameters);
    take("placement.gradients", placement.gradients, choice.gradients);
    take("placement.optimizer", placement.optimizer, choice.optimizer);
    const config::TierBytes bytes = plan::tier_bytes(problem, choice);
    const bool plans_gpu = !asked.csd.tiers.gpu;
    const bool plans_memory = !asked.csd.tiers.memory;
    if (plans_gpu && bytes.gpu == 0) {
        sources.overrides.emplace_back("csd.tiers.gpu=0");
    }
    if (plans_memory && bytes.memory == 0) {
        sources.overrides.emplace_back("csd.tiers.memory=0");
    }
    config::RunSettings run = config::parse(sources);
    if (plans_gpu) {
        run.csd.tiers.most_gpu = bytes.gpu / plan::kGiga;
    }
    if (plans_memory) {
        run.csd.tiers.most_memory = bytes.memory / plan::kGiga;
    }
    return run;
}

config::RankCounts counts_of(const plan::Problem& problem) {
    return {.all = problem.ranks(), .of_node = problem.site.gpus};
}

// The space of placements and activations; everything else is fixed by the run.
plan::Space space_of_run(const config::RunSettings& run, const plan::Problem& problem) {
    plan::Space space = plan::space_of(problem, {run.compress.codec});
    space.gathers = {run.gather.codec};
    space.subgroups = {run.csd.subgroup_tiles};
    keep_to_program(run, problem, space);
    space.tiers = plan::tiers_of(tiers_of_run(run.csd));
    // Gradients are summed over the node, unless the settings want fewer sums.
    const int summed = config::resolved_placement(run, counts_of(problem)).gradients.ranks();
    space.scatters = {summed < problem.site.gpus ? plan::Scatter::flat
                                                 : plan::Scatter::hierarchical};
    return space;
}

// The calibration in the file plan.calibration, read by rank 0; empty if no file is named.
plan::Calibration read_calibration(const mpi::Communicator& world, const config::RunSettings& run) {
    const std::string& path = run.plan.calibration;
    if (path.empty()) {
        return {};
    }
    std::string lines;
    world.on_rank_0([&] { lines = plan::read_calibration_lines(path); });
    return plan::read_calibration(world.broadcast(lines, 0), path);
}

// Describes the run to the planner. `nodes`: the number of nodes that compute.
plan::Problem problem_of(const config::RunSettings& run, int nodes, int ranks) {
    const std::vector<int> drives = config::drives_per_rank(run, ranks);
    const int computing = config::computing_ranks(run, ranks);
    const int beside = std::accumulate(drives.begin(), drives.begin() + computing, 0) / nodes;
    plan::Problem problem{
        .work = plan::workload_of(run, size_of(run.model), run.train.global_batch),
        .site = plan::site_of(run, nodes + run.csd.storage_ranks),
        .nodes = nodes,
        .storage_nodes = run.csd.storage_ranks};
    plan::set_keeping(run, problem.work);
    problem.site.gpus = std::max(computing / nodes, 1);
    problem.site.csds = std::max(beside, 1);
    if (problem.storage_nodes > 0) {
        problem.site.csds_beside = beside;
        problem.site.csds =
            std::accumulate(drives.begin() + computing, drives.end(), 0) / problem.storage_nodes;
    }
    return problem;
}

}  // namespace

config::Tiers tiers_of_run(const config::CsdSettings& csd) {
    config::Tiers tiers = csd.tiers;
    if (!tiers.gpu && csd.durability == config::Durability::step) {
        tiers.gpu = 0;
    }
    return tiers;
}

void keep_to_program(const config::RunSettings& run, const plan::Problem& problem,
                     plan::Space& space) {
    space.clients = {plan::Client::program};
    if (run.model.activations == config::Activations::all) {
        space.kept = {plan::Kept::all};
    } else if (run.model.activations != config::Activations::automatic) {
        const bool is_on_host = run.model.activations == config::Activations::host;
        space.kept = {plan::Kept::inputs};
        space.inputs = {is_on_host ? plan::Inputs::host : plan::Inputs::gpu};
    }
    if (run.exchange.densify != config::Densify::automatic) {
        const bool is_dense = run.exchange.densify == config::Densify::always;
        space.handovers = {is_dense ? plan::Handover::dense : plan::Handover::raw};
    }
    const config::Placement& asked = run.placement;
    const config::Placement resolved = config::resolved_placement(run, counts_of(problem));
    const auto keep = [&](std::vector<plan::Mesh>& meshes, const config::GroupSize& of_run,
                          const config::GroupSize& ranks) {
        if (!of_run.is_automatic()) {
            meshes = {plan::mesh_of(ranks.ranks(), problem.site.gpus)};
        }
    };
    keep(space.parameters, asked.parameters, resolved.parameters);
    keep(space.gradients, asked.gradients, resolved.gradients);
    keep(space.optimizers, asked.optimizer, resolved.optimizer);
}

plan::ModelSize size_of(const config::ModelSettings& settings) {
    const model::Geometry geometry = model::describe(settings);
    plan::ModelSize size{.parameters = geometry.elems,
                         .largest_block = 0,
                         .blocks = static_cast<int>(geometry.blocks.size())};
    for (const model::Block& block : geometry.blocks) {
        size.largest_block = std::max(size.largest_block, block.end - block.begin);
    }
    return size;
}

PlannedRun place_by_plan(const mpi::Communicator& world, const config::Sources& sources) {
    PlannedRun planned{.run = config::parse(sources), .line = "", .calibration = {}};
    const config::RunSettings& run = planned.run;
    planned.calibration = read_calibration(world, run);
    const config::Placement& asked = run.placement;
    const bool is_decided = !asked.parameters.is_automatic() && !asked.gradients.is_automatic() &&
                            !asked.optimizer.is_automatic() && run.csd.tiers.gpu &&
                            run.csd.tiers.memory;
    if (is_decided || run.plan.gpu_tflops <= 0 || run.mode == config::Mode::base) {
        return planned;
    }
    config::validate_for_ranks(run, world.size());
    const mpi::Topology topology = engine::discover_nodes(world, run);
    const int nodes = topology.groups() - run.csd.storage_ranks;
    if (nodes * topology.most_beside() != config::computing_ranks(run, world.size())) {
        return planned;  // the planner's nodes are alike
    }
    const plan::Problem problem =
        problem_of(plan::calibrated(run, planned.calibration, nodes + run.csd.storage_ranks), nodes,
                   world.size());
    const plan::Row row = plan::plan_for(problem, space_of_run(run, problem));
    const plan::SearchResult& found = row.found;
    if (!found.plan) {
        planned.line =
            text("placement auto: the planner finds none that fits the site's memories (",
                 found.misfit ? found.misfit->memory : "no choice",
                 " is too small), the default is taken");
        return planned;
    }
    const plan::Choice& choice = found.plan->choice;
    planned.line = text("placement auto, modelled: ", plan::reason_of(row));
    planned.run = with_choice(sources, run, problem, choice);
    return planned;
}

}  // namespace nearstep::app
