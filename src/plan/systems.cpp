// Evaluates other systems as points of the planner's space. Called by the command plan.
#include "plan/systems.hpp"

#include "base/formatted.hpp"
#include "base/units.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <sstream>

namespace nearstep::plan {

namespace {

// The decisions that a system fixes. A mesh that a system leaves open is the same for parameters,
// gradients and state, and has several GPUs.
enum class Meshes { replicated, open, all };
struct System {
    const char* name;
    Meshes parameters;
    Meshes gradients;
    Meshes optimizer;
    Hidden hidden;
    Again again = Again::whole_mesh;
};

constexpr std::array<System, 6> kSystems{{
    {"ZeRO-1", Meshes::replicated, Meshes::replicated, Meshes::all, Hidden::but_update},
    {"ZeRO-2", Meshes::replicated, Meshes::all, Meshes::all, Hidden::but_update},
    {"ZeRO-3", Meshes::all, Meshes::all, Meshes::all, Hidden::none},
    {"ZeRO++", Meshes::all, Meshes::all, Meshes::all, Hidden::none, Again::in_node},
    {"MiCS", Meshes::open, Meshes::open, Meshes::open, Hidden::none},
    {"FSDP hybrid", Meshes::open, Meshes::open, Meshes::open, Hidden::all},
}};

Mesh mesh_of(Meshes meshes, const Mesh& open, const Problem& problem) {
    switch (meshes) {
        case Meshes::replicated:
            return {};
        case Meshes::open:
            return open;
        case Meshes::all:
            break;
    }
    return {.gpus = problem.site.gpus, .nodes = problem.nodes};
}

// Notes the plan if it is the fastest so far that fits.
void take(const Problem& problem, const Choice& choice, SearchResult& found) {
    const Cost cost = cost_of(problem, choice);
    ++found.costed;
    if (!does_fit(cost.demand, problem.site)) {
        const Fit fit = fits_of(cost.demand, problem.site).front();  // GPU memory
        if (!found.plan && (!found.misfit || fit.needed < found.misfit->needed)) {
            found.misfit = fit;
        }
    } else if (!found.plan || cost.terms.step < found.shortest_s) {
        found.plan = Plan{choice, cost};
        found.shortest_s = cost.terms.step;
        found.misfit.reset();
    }
}

SearchResult plan_of(const System& system, const Problem& problem) {
    SearchResult found;
    for (const Mesh& open : meshes_of(problem)) {
        for (const Kept kept : {Kept::all, Kept::inputs}) {
            Choice choice;
            choice.state = StateHome::gpu;
            choice.order = Order::by_micro_batch;
            choice.kept = kept;
            choice.parameters = mesh_of(system.parameters, open, problem);
            choice.gradients = mesh_of(system.gradients, open, problem);
            choice.optimizer = mesh_of(system.optimizer, open, problem);
            choice.again = system.again;
            choice.collective = Collective::ring;
            choice.hidden = system.hidden;
            if (choice.optimizer.size() > 1) {
                take(problem, choice, found);
            }
        }
    }
    return found;
}

Mesh mesh_with(int ranks, const Problem& problem) {
    const int gpus = std::min(ranks, problem.site.gpus);
    return {.gpus = gpus, .nodes = std::min(ranks / gpus, problem.nodes)};
}

// AMSP's planner takes the meshes whose transfers are shortest in sum; its engine then hides some
// of them.
SearchResult plan_of_amsp(const Problem& problem, const std::vector<int>& ranks, Hidden hidden) {
    Space space = resident_space_of(problem);
    space.orders = {Order::by_micro_batch};
    space.collective = Collective::ring;
    space.hidden = Hidden::none;
    if (!ranks.empty()) {
        space.parameters = {mesh_with(ranks.at(0), problem)};
        space.gradients = {mesh_with(ranks.at(1), problem)};
        space.optimizers = {mesh_with(ranks.at(2), problem)};
    }
    SearchResult found = search(problem, space);
    if (found.plan) {
        found.plan->choice.hidden = hidden;
        found.plan->cost = cost_of(problem, found.plan->choice);
        found.shortest_s = found.plan->cost.terms.step;
    }
    return found;
}

// This project's, with the choice of what backward finds.
Space near_storage_space_of(const Problem& problem, const std::vector<Codec>& codecs) {
    Space space = space_of(problem, codecs);
    space.kept = {Kept::all, Kept::inputs};
    return space;
}

}  // namespace

std::vector<SystemRow> systems_of(const Problem& problem, const std::vector<Codec>& codecs,
                                  const Amsp& amsp) {
    std::vector<SystemRow> rows;
    rows.reserve(kSystems.size());
    for (const System& system : kSystems) {
        rows.push_back({system.name, problem, plan_of(system, problem)});
    }
    rows.push_back({"AMSP", problem, plan_of_amsp(problem, amsp.meshes, amsp.hidden)});
    if (!amsp.meshes.empty()) {
        rows.push_back({"AMSP's objective", problem, plan_of_amsp(problem, {}, amsp.hidden)});
    }
    rows.push_back(
        {"nearstep, state in GPU memory", problem, search(problem, resident_space_of(problem))});
    if (problem.site.csds > 0) {
        rows.push_back({"nearstep, state on devices", problem,
                        search(problem, near_storage_space_of(problem, codecs))});
    }
    return rows;
}

std::string describe(const std::vector<SystemRow>& rows) {
    std::ostringstream out;
    out << "modelled   GPUs  system                            step s   tokens/s   of peak  GPU "
           "memory  P / G / OS\n";
    for (const SystemRow& row : rows) {
        const Problem& problem = row.problem;
        out << formatted("modelled %6d  %-30s", problem.ranks(), row.system.c_str());
        if (!row.found.plan) {
            out << "  no plan: " << misfit_text(row.found) << "\n";
            continue;
        }
        const Choice& choice = row.found.plan->choice;
        const Cost& cost = row.found.plan->cost;
        out << formatted("%10.3f%11.0f%8.1f %%  %10s  ", cost.terms.step,
                         tokens_per_s(problem, cost.terms),
                         100 * problem.share_of_peak(cost.terms.step),
                         human_bytes(cost.demand.gpu).c_str())
            << name_of(choice.parameters, problem) << " / " << name_of(choice.gradients, problem)
            << " / " << name_of(choice.optimizer, problem) << "\n";
    }
    return out.str();
}

nlohmann::json to_json(const std::vector<SystemRow>& rows) {
    nlohmann::json out = nlohmann::json::array();
    for (const SystemRow& row : rows) {
        nlohmann::json object = {{"origin", "modelled"},
                                 {"system", row.system},
                                 {"nodes", row.problem.nodes},
                                 {"gpus", row.problem.ranks()},
                                 {"devices", row.problem.devices()},
                                 {"parameters", row.problem.work.model.parameters}};
        if (row.found.plan) {
            object.update(plan_json(*row.found.plan, row.problem));
        } else {
            object["refused"] = misfit_text(row.found);
        }
        out.push_back(std::move(object));
    }
    return out;
}

}  // namespace nearstep::plan
