#include "plan/search.hpp"

#include <algorithm>
#include <limits>

namespace nearstep::plan {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The fields up to `scatter`, which decide what a GPU must hold and bound the step from below.
std::vector<Choice> front_choices(const Problem& problem, const Space& space) {
    std::vector<Choice> choices;
    Choice choice;
    const auto with_meshes = [&] {
        // The finest mesh allows all that any allows; the rest decides on the others.
        choice.optimizer = {.gpus = problem.site.gpus, .nodes = problem.nodes};
        for (const Mesh& gradients : space.gradients) {
            choice.gradients = gradients;
            for (const Scatter scatter : space.scatters) {
                choice.scatter = scatter;
                if (is_allowed(problem, choice)) {
                    choices.push_back(choice);
                }
            }
        }
    };
    for (const Codec codec : space.codecs) {
        choice.codec = codec;
        for (const Gather gather : space.gathers) {
            choice.gather = gather;
            for (const Mesh& parameters : space.parameters) {
                choice.parameters = parameters;
                for (const Home home : space.homes) {
                    choice.home = home;
                    for (const Order order : space.orders) {
                        choice.order = order;
                        with_meshes();
                    }
                }
            }
        }
    }
    return choices;
}

// Calls visit() with every allowed choice that begins with `front` and whose fields up to
// `optimizer` are wanted, until visit() returns false.
template <typename Wants, typename Visit>
bool for_each_rest(const Problem& problem, const Space& space, const Choice& front, Wants wants,
                   Visit visit) {
    Choice choice = front;
    for (const Mesh& optimizer : space.optimizers) {
        choice.optimizer = optimizer;
        if (!wants(choice)) {
            continue;
        }
        for (const Owner owner : space.owners) {
            choice.owner = owner;
            if (!is_allowed(problem, choice)) {
                continue;
            }
            for (const Landing landing : space.landings) {
                choice.landing = landing;
                for (const std::size_t tiles : space.subgroups) {
                    choice.subgroup_tiles = tiles;
                    for (const int slots : space.slots) {
                        choice.slots = slots;
                        if (!visit(choice)) {
                            return false;
                        }
                    }
                }
            }
        }
    }
    return true;
}

const Fit& worst(const std::array<Fit, 4>& fits) {
    return *std::max_element(fits.begin(), fits.end(), [](const Fit& one, const Fit& other) {
        return one.ratio() < other.ratio();
    });
}

void note_misfit(const Fit& fit, Found& found) {
    if (!found.misfit || fit.ratio() < found.misfit->ratio()) {
        found.misfit = fit;
    }
}

struct Front {
    Choice choice;
    double bound;
};

class Search {
public:
    // Without bounds nothing is left out.
    Search(const Problem& problem, const Space& space, bool has_bounds)
        : problem_(problem), space_(space), has_bounds_(has_bounds) {}

    Found run() {
        note_fronts();
        find_shortest();
        if (shortest_ < kNever) {
            found_.shortest_s = shortest_;
            found_.misfit.reset();
            take_first_within(shortest_ * (1 + kMargin));
        }
        return found_;
    }

private:
    void note_fronts() {
        for (const Choice& choice : front_choices(problem_, space_)) {
            const double needed = gpu_bytes(problem_, choice);
            if (has_bounds_ && needed > problem_.site.gpu_memory) {
                note_misfit({"GPU memory", needed, problem_.site.gpu_memory}, found_);
            } else {
                fronts_.push_back({choice, has_bounds_ ? least_seconds(problem_, choice) : 0});
            }
        }
    }

    // The fastest fronts first, so that the others are soon out of the race.
    void find_shortest() {
        std::vector<Front> fronts = fronts_;
        std::stable_sort(fronts.begin(), fronts.end(), [](const Front& one, const Front& other) {
            return one.bound < other.bound;
        });
        for (const Front& front : fronts) {
            if (front.bound >= shortest_) {
                break;
            }
            const auto is_in_race = [&](const Choice& choice) {
                return !has_bounds_ || least_seconds(problem_, choice) < shortest_;
            };
            for_each_rest(problem_, space_, front.choice, is_in_race, [&](const Choice& choice) {
                const Cost cost = cost_of(problem_, choice);
                ++found_.costed;
                if (does_fit(cost.demand, problem_.site)) {
                    shortest_ = std::min(shortest_, cost.terms.step);
                } else {
                    note_misfit(worst(fits_of(cost.demand, problem_.site)), found_);
                }
                return !has_bounds_ || front.bound < shortest_;
            });
        }
    }

    void take_first_within(double limit) {
        for (const Front& front : fronts_) {
            if (found_.plan) {
                return;
            }
            const auto is_within = [&](const Choice& choice) {
                return !has_bounds_ || least_seconds(problem_, choice) <= limit;
            };
            if (front.bound > limit) {
                continue;
            }
            for_each_rest(problem_, space_, front.choice, is_within, [&](const Choice& choice) {
                const Cost cost = cost_of(problem_, choice);
                ++found_.costed;
                if (does_fit(cost.demand, problem_.site) && cost.terms.step <= limit) {
                    found_.plan = Plan{choice, cost};
                }
                return !found_.plan.has_value();
            });
        }
    }

    const Problem& problem_;
    const Space& space_;
    bool has_bounds_;
    std::vector<Front> fronts_;
    double shortest_ = kNever;
    Found found_;
};

}  // namespace

Found search(const Problem& problem, const Space& space) {
    return Search(problem, space, true).run();
}

Found search_plainly(const Problem& problem, const Space& space) {
    return Search(problem, space, false).run();
}

}  // namespace nearstep::plan
