// Searches all choices for the shortest step. Called by the command plan and comparison.cpp.
#include "plan/plan_search.hpp"

#include "plan/formulas.hpp"
#include "plan/tier_times.hpp"

#include <algorithm>
#include <limits>

namespace nearstep::plan {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;

bool is_searched(const Problem& problem, const Space& space, const Choice& choice) {
    return space.clients.empty() || client_of(problem, choice, space.clients).has_value();
}

// A bound counts the drives' update and what goes to storage nodes; where other tiers may have any
// part of it, none.
Shares shares_of_bound(const Problem& problem, const Space& space) {
    const bool has_tiers =
        space.tiers != std::vector<config::Tiers>{{}} || problem.work.is_in_memory;
    return has_tiers ? Shares{.gpu = 1} : Shares{};
}

// The fields up to `scatter`: they decide the GPU memory and a lower bound on the step.
std::vector<Choice> front_choices(const Problem& problem, const Space& space) {
    std::vector<Choice> choices;
    Choice choice;
    choice.again = space.again;
    choice.collective = space.collective;
    choice.hidden = space.hidden;
    choice.shares = shares_of_bound(problem, space);
    const auto note = [&] {
        if (is_allowed(problem, choice) && is_searched(problem, space, choice)) {
            choices.push_back(choice);
        }
    };
    const auto with_meshes = [&] {
        // The finest mesh allows every choice that any mesh allows; coarser meshes are tried later.
        choice.optimizer = {.gpus = problem.site.gpus, .nodes = problem.nodes};
        for (const Mesh& gradients : space.gradients) {
            choice.gradients = gradients;
            for (const Scatter scatter : space.scatters) {
                choice.scatter = scatter;
                note();
            }
        }
    };
    const auto with_places = [&] {
        for (const Inputs inputs : space.inputs) {
            choice.inputs = inputs;
            for (const Sums sums : space.sums) {
                choice.sums = sums;
                with_meshes();
            }
        }
    };
    const auto with_orders = [&] {
        for (const Home home : space.homes) {
            choice.home = home;
            for (const Order order : space.orders) {
                choice.order = order;
                for (const Kept kept : space.kept) {
                    choice.kept = kept;
                    with_places();
                }
            }
        }
    };
    for (const StateHome state : space.states) {
        choice.state = state;
        for (const Codec codec : space.codecs) {
            choice.codec = codec;
            for (const Gather gather : space.gathers) {
                choice.gather = gather;
                for (const Mesh& parameters : space.parameters) {
                    choice.parameters = parameters;
                    with_orders();
                }
            }
        }
    }
    return choices;
}

// Owners that hand on the fewest bytes come first: the densification rule.
std::vector<Handover> handovers_in_order(const Problem& problem, const Space& space,
                                         const Choice& choice) {
    const auto bytes = [&](Handover handover) {
        return handover_bytes(handover, choice.codec, lists_of(problem, choice), problem.work.keep,
                              problem.work.element_bytes);
    };
    std::vector<Handover> handovers = space.handovers;
    std::ranges::stable_sort(handovers, {}, bytes);
    return handovers;
}

const Fit& worst(const std::vector<Fit>& fits) {
    return *std::ranges::max_element(fits, {}, &Fit::ratio);
}

void note_misfit(const Fit& fit, SearchResult& found) {
    if (!found.misfit || fit.ratio() < found.misfit->ratio()) {
        found.misfit = fit;
    }
}

// Bytes per parameter that a node sends and gets over the network in a step.
double traffic_of(const Plan& plan) {
    return plan.cost.volumes.network_gradients + plan.cost.volumes.network_parameters;
}

bool has_formats_of(const Choice& first, const Choice& other) {
    return first.state == other.state && first.codec == other.codec && first.gather == other.gather;
}

bool has_tiers_of(const Choice& first, const Choice& other) {
    return (first.shares.gpu > 0) == (other.shares.gpu > 0) &&
           (first.shares.memory > 0) == (other.shares.memory > 0);
}

struct Front {
    Choice choice;
    double bound;
};

enum class Pruning { none, exact };

class Search {
public:
    Search(const Problem& problem, const Space& space, Pruning pruning)
        : problem_(problem), space_(space), prunes_(pruning == Pruning::exact) {}

    SearchResult run() {
        note_fronts();
        if (!fronts_.empty()) {  // GPU memory is large enough
            found_.misfit.reset();
        }
        find_shortest();
        if (shortest_ < kNever) {
            found_.shortest_s = shortest_;
            found_.misfit.reset();
            const double limit = shortest_ * (1 + kMargin);
            take_first_within(limit);
            if (space_.ties == Ties::least_traffic) {
                take_least_traffic_within(limit);
            }
        }
        return found_;
    }

private:
    void note_fronts() {
        for (const Choice& choice : front_choices(problem_, space_)) {
            const double needed = gpu_bytes(problem_, choice);
            if (prunes_ && needed > problem_.site.gpu_memory) {
                note_misfit({"GPU memory", needed, problem_.site.gpu_memory}, found_);
            } else {
                fronts_.push_back(
                    {choice,
                     prunes_ ? least_seconds(problem_, choice, Known::before_optimizer) : 0});
            }
        }
    }

    // Visits the fastest fronts first, so that the others are pruned early.
    void find_shortest() {
        std::vector<Front> fronts = fronts_;
        std::ranges::stable_sort(fronts, {}, &Front::bound);
        for (const Front& front : fronts) {
            if (front.bound >= shortest_) {
                break;
            }
            const auto is_in_race = [&](const Choice& choice) {
                return least_seconds(problem_, choice, Known::with_optimizer) < shortest_;
            };
            walk(front.choice, is_in_race, [&](const Choice&, const Cost& cost) {
                if (!does_fit(cost.demand, problem_.site)) {
                    note_misfit(worst(fits_of(cost.demand, problem_.site)), found_);
                    return true;
                }
                shortest_ = std::min(shortest_, cost.terms.step);
                return front.bound < shortest_;
            });
        }
    }

    void take_first_within(double limit) {
        for (const Front& front : fronts_) {
            if (found_.plan) {
                return;
            }
            if (front.bound > limit) {
                continue;
            }
            const auto is_within = [&](const Choice& choice) {
                return least_seconds(problem_, choice, Known::with_optimizer) <= limit;
            };
            walk(front.choice, is_within, [&](const Choice& choice, const Cost& cost) {
                if (does_fit(cost.demand, problem_.site) && cost.terms.step <= limit) {
                    found_.plan = Plan{choice, cost};
                }
                return !found_.plan.has_value();
            });
        }
    }

    // Takes the plan that sends least among those with the formats and tiers of the first one.
    void take_least_traffic_within(double limit) {
        const Choice first = found_.plan->choice;
        for (const Front& front : fronts_) {
            if (traffic_of(*found_.plan) == 0) {
                return;
            }
            if (front.bound > limit || !has_formats_of(first, front.choice)) {
                continue;
            }
            const auto is_within = [&](const Choice& choice) {
                return least_seconds(problem_, choice, Known::with_optimizer) <= limit;
            };
            walk(front.choice, is_within, [&](const Choice& choice, const Cost& cost) {
                const Plan plan{choice, cost};
                if (has_tiers_of(first, choice) && cost.terms.step <= limit &&
                    traffic_of(plan) < traffic_of(*found_.plan) * (1 - kRounding) &&
                    does_fit(cost.demand, problem_.site)) {
                    found_.plan = plan;
                }
                return true;
            });
        }
    }

    // Calls visit() with every allowed choice that begins with `front`, and its cost, until visit()
    // returns false. With pruning, only choices whose fields up to `optimizer` satisfy `wants`.
    template <typename Wants, typename Visit>
    void walk(const Choice& front, Wants wants, Visit visit) {
        Choice choice = front;
        const std::vector<Handover> handovers = handovers_in_order(problem_, space_, choice);
        for (const Mesh& optimizer : space_.optimizers) {
            choice.optimizer = optimizer;
            choice.handover = handovers.front();
            if (prunes_ && (!is_within(choice.gradients, optimizer) || !wants(choice))) {
                continue;
            }
            for (const Handover handover : handovers) {
                choice.handover = handover;
                if (is_allowed(problem_, choice) && !walk_stagings(choice, visit)) {
                    return;
                }
            }
        }
    }

    // The tiers and subgroup sizes. Pruning skips sizes that the partition narrows to an earlier
    // one.
    template <typename Visit>
    bool walk_stagings(Choice choice, Visit visit) {
        for (const config::Tiers& tiers : space_.tiers) {
            if (!walk_stagings(choice, tiers, visit)) {
                return false;
            }
        }
        return true;
    }

    template <typename Visit>
    bool walk_stagings(Choice choice, const config::Tiers& asked, Visit visit) {
        std::vector<double>& seen = seen_tiles_;
        seen.clear();
        for (const std::size_t tiles : space_.subgroups) {
            choice.subgroup_tiles = tiles;
            const double narrowed = Numbers(problem_, choice).subgroup_tiles;
            if (prunes_ && std::ranges::find(seen, narrowed) != seen.end()) {
                continue;
            }
            seen.push_back(narrowed);
            choice.shares = best_shares(problem_, choice, asked);
            ++found_.costed;
            if (!visit(choice, cost_of(problem_, choice))) {
                return false;
            }
        }
        return true;
    }

    const Problem& problem_;
    const Space& space_;
    bool prunes_;
    std::vector<Front> fronts_;
    std::vector<double> seen_tiles_;
    double shortest_ = kNever;
    SearchResult found_;
};

}  // namespace

SearchResult search(const Problem& problem, const Space& space) {
    return Search(problem, space, Pruning::exact).run();
}

SearchResult search_plainly(const Problem& problem, const Space& space) {
    return Search(problem, space, Pruning::none).run();
}

}  // namespace nearstep::plan
