// Asks the planner where placements are "auto". Used by the commands train and plan.
#include "app/placement.hpp"

#include "base/error.hpp"
#include "engine/placement/devices.hpp"
#include "model/geometry.hpp"
#include "plan/report.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace nearstep::app {

namespace {

// Replaces the placements that are automatic by the plan's choice.
config::Run with_choice(config::Sources sources, const config::Placement& asked,
                        const config::Placement& chosen) {
    const auto take = [&](const char* key, config::Sharding of_run, config::Sharding of_plan) {
        if (of_run == config::Sharding::automatic) {
            sources.overrides.push_back(text(key, "=", config::name_of(of_plan)));
        }
    };
    take("placement.parameters", asked.parameters, chosen.parameters);
    take("placement.gradients", asked.gradients, chosen.gradients);
    take("placement.optimizer", asked.optimizer, chosen.optimizer);
    return config::parse(sources);
}

// Keeps the meshes that are asked for; all of them if that is automatic.
void keep_meshes(std::vector<plan::Mesh>& meshes, config::Sharding asked,
                 const plan::Problem& problem) {
    if (asked != config::Sharding::automatic) {
        meshes = {{.gpus = asked == config::Sharding::replicated ? 1 : problem.site.gpus,
                   .nodes = asked == config::Sharding::global ? problem.nodes : 1}};
    }
}

// Whether every rank encodes its own gradients.
bool has_own_gradients(const config::Run& run) {
    return config::placement_of(run).gradients == config::Sharding::replicated;
}

// The space of placements; everything else is fixed by the run.
plan::Space space_of_run(const config::Run& run, const plan::Problem& problem) {
    plan::Space space = plan::trainable_space_of(problem, {run.compress.codec});
    const bool has_deltas = run.gather.codec == config::ParameterCodec::delta;
    space.gathers = {has_deltas ? plan::Gather::delta : plan::Gather::dense};
    space.scatters = {has_own_gradients(run) && problem.site.gpus > 1
                          ? plan::Scatter::flat
                          : plan::Scatter::hierarchical};
    const auto spans_nodes = [](const plan::Mesh& mesh) { return mesh.nodes > 1; };
    if (has_deltas) {
        std::erase_if(space.parameters, spans_nodes);
    }
    if (run.compress.error_feedback) {
        std::erase_if(space.gradients, spans_nodes);
    }
    keep_asked_placements(run.placement, problem, space);
    return space;
}

// The calibration in the file plan.calibration, read by rank 0; empty if no file is named.
plan::Calibration read_calibration(const mpi::Communicator& world, const config::Run& run) {
    const std::string& path = run.plan.calibration;
    if (path.empty()) {
        return {};
    }
    std::string lines;
    world.on_rank_0([&] { lines = plan::read_calibration_lines(path); });
    return plan::read_calibration(world.broadcast(lines, 0), path);
}

// `nodes`: that compute.
plan::Problem problem_of(const config::Run& run, int nodes, int ranks) {
    const std::vector<int> devices = config::drives_per_rank(run, ranks);
    plan::Problem problem{
        .work = plan::workload_of(run, size_of(run.model), run.train.global_batch),
        .site = plan::site_of(run, nodes + run.csd.storage_ranks),
        .nodes = nodes,
        .storage_nodes = run.csd.storage_ranks};
    problem.site.gpus = std::max(config::computing_ranks(run, ranks) / nodes, 1);
    problem.site.csds =
        std::max(std::accumulate(devices.begin(), devices.end(), 0) / problem.homes(), 1);
    return problem;
}

}  // namespace

void keep_asked_placements(const config::Placement& placement, const plan::Problem& problem,
                           plan::Space& space) {
    keep_meshes(space.parameters, placement.parameters, problem);
    keep_meshes(space.gradients, placement.gradients, problem);
    keep_meshes(space.optimizers, placement.optimizer, problem);
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
    const config::Run& run = planned.run;
    planned.calibration = read_calibration(world, run);
    const config::Placement& asked = run.placement;
    const bool is_decided = asked.parameters != config::Sharding::automatic &&
                            asked.gradients != config::Sharding::automatic &&
                            asked.optimizer != config::Sharding::automatic;
    if (is_decided || run.plan.gpu_tflops <= 0 || run.mode == config::Mode::base) {
        return planned;
    }
    config::validate_for_ranks(run, world.size());
    const int nodes = engine::discover_nodes(world, run).groups() - run.csd.storage_ranks;
    const plan::Problem problem =
        problem_of(plan::calibrated(run, planned.calibration, nodes + run.csd.storage_ranks), nodes,
                   world.size());
    const plan::Found found = plan::search(problem, space_of_run(run, problem));
    if (!found.plan) {
        planned.line =
            text("placement auto: the planner finds none that fits the site's memories (",
                 found.misfit ? found.misfit->memory : "no choice",
                 " is too small), the default is taken");
        return planned;
    }
    const plan::Choice& choice = found.plan->choice;
    planned.line =
        text("placement auto, modelled: parameters ", plan::name_of(choice.parameters, problem),
             ", gradients ", plan::name_of(choice.gradients, problem), ", optimizer ",
             plan::name_of(choice.optimizer, problem), "; a step of ", found.plan->cost.terms.step,
             " s, of which ", found.plan->cost.terms.opt, " s for the update");
    config::Placement wanted = asked;
    if (has_own_gradients(run)) {  // also where replicated state implies them
        wanted.gradients = config::Sharding::replicated;
    }
    planned.run = with_choice(sources, wanted, plan::placement_in(choice, problem));
    return planned;
}

}  // namespace nearstep::app
