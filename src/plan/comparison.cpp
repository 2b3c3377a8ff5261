// Compares a plan with its alternatives, and finds what more hardware is worth. Used by
// plan_report.cpp.
#include "plan/plan_search.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace nearstep::plan {

namespace {

// Collects the best plans with other values, field by field.
class Others {
public:
    Others(const Plan& plan, const Problem& problem, const Space& space)
        : plan_(plan), problem_(problem), space_(space) {}

    // Searches once for each other value.
    template <typename T>
    void each(std::string_view field, std::vector<T> Space::*values, T Choice::*chosen) {
        for (const T& value : space_.*values) {
            if (value != plan_.choice.*chosen) {
                Space others = space_;
                others.*values = {value};
                add(field, others, std::string(name_of(value)));
            }
        }
    }

    // One search over all other values; `write` formats the value found.
    template <typename T, typename Write>
    void best(std::string_view field, std::vector<T> Space::*values, T Choice::*chosen,
              Write write) {
        Space others = space_;
        std::vector<T>& left = others.*values;
        left.erase(std::remove(left.begin(), left.end(), plan_.choice.*chosen), left.end());
        if (left.empty()) {
            return;
        }
        if (add(field, others, "any other") && found_.back().found.plan) {
            found_.back().value = write(found_.back().found.plan->choice.*chosen);
        }
    }

    // By another client.
    void clients() {
        const std::optional<Client> chosen = client_of(problem_, plan_.choice, space_.clients);
        for (const Client client : space_.clients) {
            if (client != chosen) {
                Space others = space_;
                others.clients = {client};
                add("client", others, std::string(name_of(client)));
            }
        }
    }

    // With the state in other tiers, also where the run may not use them.
    void tiers() {
        for (const config::Tiers& tiers : tiers_of({.gpu = std::nullopt, .memory = std::nullopt})) {
            Space others = space_;
            others.tiers = {tiers};
            const SearchResult found = search(problem_, others);
            if (found.plan) {
                const std::string shares = name_of(found.plan->choice.shares);
                if (shares != name_of(plan_.choice.shares) &&
                    (found_.empty() || shares != found_.back().value)) {
                    found_.push_back({"tiers", shares, found});
                }
            }
        }
    }

    std::vector<Alternative> take() { return std::move(found_); }

private:
    // Returns false and adds no line if no choice with these values is allowed.
    bool add(std::string_view field, const Space& space, const std::string& value) {
        const SearchResult found = search(problem_, space);
        if (!found.plan && !found.misfit) {
            return false;
        }
        found_.push_back({field, value, found});
        return true;
    }

    const Plan& plan_;
    const Problem& problem_;
    const Space& space_;
    std::vector<Alternative> found_;
};

Site with_doubled(Site site, std::string_view resource) {
    if (resource == "GPU") {
        site.gpu_operations *= 2;
        site.gpu_memory_rate *= 2;
    } else if (resource == "GPU links") {
        site.gpu_link *= 2;
        site.gpu_to_gpu *= 2;
    } else if (resource == "device") {
        site.device_read *= 2;
        site.device_write *= 2;
        site.device_memory_rate *= 2;
        site.device_updates *= 2;
    } else if (resource == "host link") {
        site.host_link *= 2;
        site.host_link_total *= 2;
        site.device_link *= 2;
    } else if (resource == "network") {
        site.network *= 2;
        site.latency_s /= 2;
    } else {
        site.host_memory_rate *= 2;
    }
    return site;
}

}  // namespace

std::vector<Alternative> alternatives_to(const Plan& plan, const Problem& problem,
                                         const Space& space) {
    Others others(plan, problem, space);
    const auto mesh = [&](const Mesh& value) { return name_of(value, problem); };
    const auto number = [](auto value) { return std::to_string(value); };
    others.clients();
    others.each("codec", &Space::codecs, &Choice::codec);
    others.each("gather", &Space::gathers, &Choice::gather);
    others.best("parameters", &Space::parameters, &Choice::parameters, mesh);
    others.each("home", &Space::homes, &Choice::home);
    others.each("order", &Space::orders, &Choice::order);
    others.each("kept", &Space::kept, &Choice::kept);
    others.each("inputs", &Space::inputs, &Choice::inputs);
    others.each("sums", &Space::sums, &Choice::sums);
    others.best("gradients", &Space::gradients, &Choice::gradients, mesh);
    others.each("scatter", &Space::scatters, &Choice::scatter);
    others.best("optimizer", &Space::optimizers, &Choice::optimizer, mesh);
    others.each("owner", &Space::handovers, &Choice::handover);
    others.tiers();
    others.best("subgroup_tiles", &Space::subgroups, &Choice::subgroup_tiles, number);
    return others.take();
}

std::string_view longest_excess(const Terms& plan, const Terms& other) {
    std::string_view name = "T_overlap";  // the only term that is better when longer
    double most = plan.overlap - other.overlap;
    for (const TermName& term : term_names()) {
        const double excess = other.*term.value - plan.*term.value;
        if (!term.is_phase && excess > most) {
            most = excess;
            name = term.name;
        }
    }
    return most > 0 ? name : "";
}

std::vector<Worth> worths_of(const Problem& problem, const Choice& choice) {
    const double step = cost_of(problem, choice).terms.step;
    std::vector<Worth> worths;
    for (const std::string_view resource :
         {"GPU", "GPU links", "device", "host link", "network", "host memory"}) {
        Problem faster = problem;
        faster.site = with_doubled(problem.site, resource);
        worths.push_back({resource, 1 - cost_of(faster, choice).terms.step / step});
    }
    std::ranges::stable_sort(worths, std::greater(), &Worth::gain);
    return worths;
}

}  // namespace nearstep::plan
