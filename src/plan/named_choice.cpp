// Evaluates choices that files fix in part, as points of the planner's space. Called by the command
// plan.
#include "plan/named_choice.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/input_file.hpp"
#include "base/units.hpp"
#include "config/toml_text.hpp"

#include <algorithm>
#include <sstream>
#include <type_traits>

namespace nearstep::plan {

namespace {

constexpr const char* kKeys =
    "name, state, order, parameters, gradients, optimizer, again, collective, hidden and "
    "ranked";

[[noreturn]] void refuse(const config::TomlEntry& entry, const std::string& advice) {
    throw ConfigError(text(entry.key, " (", entry.origin, ") ", advice, "."));
}

const std::string& word_of(const config::TomlEntry& entry) {
    const auto* word = entry.is_section || entry.value.is_list
                           ? nullptr
                           : std::get_if<std::string>(&entry.value.items.front());
    if (word == nullptr) {
        refuse(entry, "has no text in quotation marks: give it one");
    }
    return *word;
}

template <Worded E>
E parsed(const config::TomlEntry& entry) {
    return parse_word<E>(text(entry.key, " (", entry.origin, ")").c_str(), word_of(entry));
}

Sharing sharing_of(const config::TomlEntry& entry) {
    if (!entry.is_section && !entry.value.is_list) {
        const config::Scalar& value = entry.value.items.front();
        const auto* ranks = std::get_if<std::int64_t>(&value);
        if (ranks != nullptr && *ranks >= 1 && *ranks <= 65536) {
            return {Sharing::Kind::ranks, static_cast<int>(*ranks)};
        }
        const auto* word = std::get_if<std::string>(&value);
        if (word != nullptr && (*word == "all" || *word == "group")) {
            return {*word == "all" ? Sharing::Kind::all : Sharing::Kind::group};
        }
    }
    refuse(entry, R"(wants a number of ranks from 1 to 65536, "all" or "group")");
}

void take(const config::TomlEntry& entry, NamedChoice& named) {
    const auto set = [&]<typename E>(const char* key, E& target) {
        if (entry.key == key) {
            if constexpr (std::is_same_v<E, std::string>) {
                target = word_of(entry);
            } else if constexpr (std::is_same_v<E, std::optional<Sharing>>) {
                target = sharing_of(entry);
            } else if constexpr (Worded<E>) {
                target = parsed<E>(entry);
            } else {
                target = parsed<typename E::value_type>(entry);
            }
        }
        return entry.key == key;
    };
    if (!(set("name", named.name) || set("state", named.state) || set("order", named.order) ||
          set("parameters", named.parameters) || set("gradients", named.gradients) ||
          set("optimizer", named.optimizer) || set("again", named.again) ||
          set("collective", named.collective) || set("hidden", named.hidden) ||
          set("ranked", named.ranked))) {
        refuse(entry, text("is no key of a choice: the keys are ", kKeys));
    }
}

void fix(const std::optional<Sharing>& sharing, const Problem& problem, const Mesh& group,
         std::vector<Mesh>& meshes) {
    if (!sharing) {
        return;
    }
    Mesh mesh = {.gpus = problem.site.gpus, .nodes = problem.nodes};
    if (sharing->kind == Sharing::Kind::group) {
        mesh = group;
    } else if (sharing->kind == Sharing::Kind::ranks) {
        mesh = mesh_of(std::min(sharing->ranks, problem.ranks()), problem.site.gpus);
    }
    meshes = {mesh};
}

Space space_of(const NamedChoice& named, const Problem& problem, const Mesh& group,
               const std::vector<Codec>& codecs) {
    const bool is_resident = named.state == StateHome::gpu;
    Space space = is_resident ? resident_space_of(problem) : space_of(problem, codecs);
    if (named.order) {
        space.orders = {*named.order};
    }
    fix(named.parameters, problem, group, space.parameters);
    fix(named.gradients, problem, group, space.gradients);
    fix(named.optimizer, problem, group, space.optimizers);
    space.again = named.again;
    space.collective = named.collective;
    space.hidden = named.ranked.value_or(named.hidden);
    space.ties = named.ranked ? Ties::first : Ties::least_traffic;
    return space;
}

// The groups to try: all of several ranks, if a vector has a group's size.
std::vector<Mesh> groups_of(const NamedChoice& named, const Problem& problem) {
    const auto has_group = [](const std::optional<Sharing>& sharing) {
        return sharing && sharing->kind == Sharing::Kind::group;
    };
    if (!has_group(named.parameters) && !has_group(named.gradients) &&
        !has_group(named.optimizer)) {
        return {Mesh{}};
    }
    std::vector<Mesh> groups = meshes_of(problem);
    if (groups.size() > 1) {
        groups.erase(groups.begin());  // the one of a single rank
    }
    return groups;
}

bool is_better(const SearchResult& one, const SearchResult& other) {
    if (one.plan) {
        return !other.plan || one.plan->cost.terms.step < other.plan->cost.terms.step;
    }
    return !other.plan && one.misfit &&
           (!other.misfit || one.misfit->ratio() < other.misfit->ratio());
}

}  // namespace

NamedChoice read_choice(const std::string& path) {
    const std::string advice = "name a choice file, as in cluster/experiments/llama.choices.";
    NamedChoice named;
    for (const config::TomlEntry& entry :
         config::read_toml(path, read_short_file(path, "choice file", advice))) {
        take(entry, named);
    }
    if (named.name.empty()) {
        throw ConfigError(
            text(on_one_line(path), R"( names no choice: give it a line name = "...".)"));
    }
    named.origin = path;
    return named;
}

Row plan_for(const Problem& problem, const NamedChoice& named, const std::vector<Codec>& codecs) {
    Row row{.problem = problem, .found = {}, .name = named.name};
    for (const Mesh& group : groups_of(named, problem)) {
        const SearchResult found = search(problem, space_of(named, problem, group, codecs));
        if (is_better(found, row.found)) {
            row.found = found;
        }
    }
    if (!row.found.plan && !row.found.misfit) {
        throw ConfigError(text(on_one_line(named.origin), " fixes what does not fit together on ",
                               problem.nodes, " nodes with ", problem.site.gpus,
                               " GPUs each: state must be shared by as many ranks as gradients, "
                               "and gradients as parameters, or by a multiple."));
    }
    if (row.found.plan && named.ranked) {
        Plan& plan = *row.found.plan;
        plan.choice.hidden = named.hidden;
        plan.cost = cost_of(problem, plan.choice);
        row.found.shortest_s = plan.cost.terms.step;
    }
    if (row.found.plan) {
        row.worths = worths_of(problem, row.found.plan->choice);
    }
    return row;
}

std::string describe_named(const std::vector<Row>& rows) {
    std::ostringstream out;
    out << "modelled   GPUs  choice                            step s   tokens/s   of peak  GPU "
           "memory  P / G / OS\n";
    for (const Row& row : rows) {
        const Problem& problem = row.problem;
        out << formatted("modelled %6d  %-30s", problem.ranks(), row.name.c_str());
        if (!row.found.plan) {
            out << "  no plan: " << refusal_of(row) << "\n";
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

}  // namespace nearstep::plan
