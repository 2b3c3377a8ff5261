// Says why a plan was chosen. Used by plan_report.cpp and where a run places its state.
#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/units.hpp"
#include "plan/plan_report.hpp"
#include "plan/tier_times.hpp"

#include <utility>

namespace nearstep::plan {

namespace {

// The meshes, and the next best plan with another mesh.
std::string other_placement(const Row& row) {
    const Alternative* best = nullptr;
    for (const Alternative& other : row.alternatives) {
        const bool is_placement =
            other.field == "parameters" || other.field == "gradients" || other.field == "optimizer";
        if (is_placement && other.found.plan &&
            (best == nullptr ||
             other.found.plan->cost.terms.step < best->found.plan->cost.terms.step)) {
            best = &other;
        }
    }
    if (best == nullptr) {
        return "No other placement is allowed and fits.";
    }
    const Terms& terms = row.found.plan->cost.terms;
    const Terms& others = best->found.plan->cost.terms;
    const double change = 100 * (others.step / terms.step - 1);
    const std::string_view most = longest_excess(terms, others);
    return text("The best other placement, ", best->field, " ", best->value, ", takes ",
                three_digits(std::abs(change)), change < 0 ? " % less" : " % more",
                most.empty() ? "" : text(", most of it in ", most),
                change <= 100 * kMargin ? ", no more than the formulas are exact." : ".");
}

// Says where a rank's state lies.
std::string tiers_text(const Plan& plan, const Problem& problem) {
    const config::TierBytes bytes = tier_bytes(problem, plan.choice);
    const Terms& terms = plan.cost.terms;
    std::string out;
    for (const auto& [held, where] :
         {std::pair{bytes.gpu, text(" in GPU memory (T_gpu ", three_digits(terms.gpu), " s)")},
          std::pair{bytes.memory,
                    text(" in host memory (T_memory ", three_digits(terms.memory), " s)")},
          std::pair{bytes.drive, std::string(" on drives")}}) {
        if (held > 0) {
            out += text(out.empty() ? "" : " + ", human_bytes(held), where);
        }
    }
    return ", state of a rank " + out;
}

}  // namespace

std::string reason_of(const Row& row) {
    const Plan& plan = *row.found.plan;
    const Problem& problem = row.problem;
    const Terms& terms = plan.cost.terms;
    const auto parameters = static_cast<double>(problem.work.model.parameters);
    const Volumes& bytes = plan.cost.volumes;
    return text("parameters ", name_of(plan.choice.parameters, problem), ", gradients ",
                name_of(plan.choice.gradients, problem), ", optimizer ",
                name_of(plan.choice.optimizer, problem), tiers_text(plan, problem), "; a step of ",
                three_digits(terms.step), " s, ", three_digits(tokens_per_s(problem, terms)),
                " tokens/s, with ", three_digits(terms.fwd_gpu + terms.bwd_gpu),
                " s of a GPU's work. Over the network a node sends ",
                human_bytes(bytes.network_gradients * parameters), " of gradients (T_scat ",
                three_digits(terms.scat), " s) and gets ",
                human_bytes(bytes.network_parameters * parameters), " of parameters (T_gather ",
                three_digits(terms.gather), " s), ",
                problem.storage_nodes > 0 ? "a storage node's" : "its", " devices read ",
                human_bytes(bytes.device_read * parameters), " and write ",
                human_bytes(bytes.device_write * parameters), " (T_csd ", three_digits(terms.csd),
                " s), and a GPU needs ", human_bytes(plan.cost.demand.gpu), " of its ",
                human_bytes(problem.site.gpu_memory), ". ", other_placement(row));
}

}  // namespace nearstep::plan
