// Prints a plan. Called by the command plan.
#include "plan/plan_report.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/units.hpp"
#include "plan/formulas.hpp"
#include "plan/kept_state.hpp"
#include "plan/numbers.hpp"
#include "plan/plan_settings.hpp"
#include "plan/published.hpp"
#include "plan/tier_times.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

namespace nearstep::plan {

double tokens_per_s(const Problem& problem, const Terms& terms) {
    return problem.work.sequences * problem.work.tokens_per_sequence / terms.step;
}

std::string misfit_text(const SearchResult& found) {
    return text("needs ", human_bytes(found.misfit->needed), " of ", found.misfit->memory,
                ", of which there are ", human_bytes(found.misfit->available));
}

std::string refusal_of(const Row& row) {
    return row.refusal.empty() ? misfit_text(row.found) : row.refusal;
}

namespace {

double dollars(const Problem& problem) {
    const Site& site = problem.site;
    return problem.nodes * (site.node_price + site.gpus * site.gpu_price) +
           problem.storage_nodes * site.storage_node_price + problem.devices() * site.csd_price;
}

double bytes_of_gather(const Choice& choice, const Problem& problem) {
    return choice.gather == Gather::delta ? problem.site.delta_bytes : problem.work.element_bytes;
}

// How a plan wears out its drives.
struct Wear {
    double written_bytes = 0;  // to each drive in a step
    double days = 0;           // until its rating is reached; 0: unknown
};

Wear wear_of(const Problem& problem, const Plan& plan) {
    constexpr double kSecondsPerDay = 86400;
    const double written = plan.cost.volumes.device_write *
                           static_cast<double>(problem.work.model.parameters) / problem.most_csds();
    return {written,
            seconds(problem.site.device_rating, written) * plan.cost.terms.step / kSecondsPerDay};
}

csd::LoggedState logged_of(const Problem& problem, const Plan& plan) {
    return kept_state(problem, plan.choice, Numbers(problem, plan.choice)).logged;
}

double updates_per_s(const Choice& choice, const Problem& problem) {
    const double share = Numbers(problem, choice).share();
    return share > 0 ? share / cost_of(problem, choice).terms.csd : 0;
}

std::string percent(double share) { return formatted("%+.1f %%", 100 * share); }

// Name and value of every field of the choice.
std::vector<std::pair<std::string, std::string>> fields_of(const Choice& choice,
                                                           const Problem& problem) {
    return {{"state", std::string(name_of(choice.state))},
            {"codec", std::string(name_of(choice.codec))},
            {"gather", std::string(name_of(choice.gather))},
            {"parameters", name_of(choice.parameters, problem)},
            {"home", std::string(name_of(choice.home))},
            {"order", std::string(name_of(choice.order))},
            {"kept", std::string(name_of(choice.kept))},
            {"inputs", std::string(name_of(choice.inputs))},
            {"sums", std::string(name_of(choice.sums))},
            {"gradients", name_of(choice.gradients, problem)},
            {"scatter", std::string(name_of(choice.scatter))},
            {"optimizer", name_of(choice.optimizer, problem)},
            {"owner", std::string(name_of(choice.handover))},
            {"tiers", name_of(choice.shares)},
            {"subgroup_tiles", std::to_string(choice.subgroup_tiles)}};
}

void write_summary(const std::vector<Row>& rows, std::ostream& out) {
    out << "modelled  nodes storage   csds     price $     step s   tokens/s  step 1/x  binds      "
           "   P / G / OS, "
           "codec, gather\n";
    const Row* first = nullptr;
    for (const Row& row : rows) {
        const double price = dollars(row.problem);
        out << formatted("modelled %6d%8d%7d%12s", row.problem.nodes, row.problem.storage_nodes,
                         row.problem.devices(), price > 0 ? three_digits(price).c_str() : "-");
        if (!row.found.plan) {
            out << "  no plan: " << refusal_of(row) << "\n";
            continue;
        }
        first = first == nullptr ? &row : first;
        const Choice& choice = row.found.plan->choice;
        const Terms& terms = row.found.plan->cost.terms;
        out << formatted("%11s%11.0f%10.2f  %-12s  ", three_digits(terms.step).c_str(),
                         tokens_per_s(row.problem, terms),
                         first->found.plan->cost.terms.step / terms.step,
                         std::string(row.worths.front().resource).c_str())
            << name_of(choice.parameters, row.problem) << " in " << name_of(choice.home) << " / "
            << name_of(choice.gradients, row.problem) << " / "
            << name_of(choice.optimizer, row.problem) << ", " << name_of(choice.codec) << ", "
            << name_of(choice.gather) << "\n";
    }
}

// Writes first what a reader wants to know first: how long a step takes, what bounds it, and
// whether further devices would help.
void write_verdict(const Row& row, std::ostream& out) {
    const auto shorter = [](const Worth& worth) {
        return text("shortens it by ", three_digits(100 * worth.gain), " %");
    };
    const Worth& bound = row.worths.front();
    const auto device = std::ranges::find(row.worths, std::string_view("device"), &Worth::resource);
    out << "modelled verdict: with " << counted(row.problem.nodes, "node") << " and "
        << counted(row.problem.devices(), "device")
        << (row.problem.storage_nodes > 0
                ? text(row.problem.has_drives_beside_gpus() ? " there and in " : " in ",
                       counted(row.problem.storage_nodes, "storage node"))
                : "")
        << " a step takes " << three_digits(row.found.plan->cost.terms.step) << " s, "
        << three_digits(tokens_per_s(row.problem, row.found.plan->cost.terms))
        << " tokens/s. What bounds it is the " << bound.resource << ": twice as fast, it "
        << shorter(bound);
    if (device != row.worths.end() && device->resource != bound.resource) {
        out << ", and a device that is twice as fast " << shorter(*device);
    }
    const Plan& plan = *row.found.plan;
    const Wear wear = wear_of(row.problem, plan);
    out << ". A step writes " << human_bytes(wear.written_bytes) << " to each drive ("
        << three_digits(plan.cost.volumes.device_write) << " bytes per parameter)";
    if (wear.days > 0) {
        out << ", whose rated " << human_bytes(row.problem.site.device_rating) << " last "
            << three_digits(wear.days) << " days";
    }
    if (row.problem.work.keeping == csd::Keeping::logged) {
        out << "; "
            << describe(logged_of(row.problem, plan), replay_seconds(row.problem, plan.choice));
    }
    out << ".\n";
}

void write_terms(const Terms& terms, std::ostream& out) {
    std::string line = "  ";
    for (const TermName& term : term_names()) {
        line += text(" ", term.name, " ", three_digits(terms.*term.value));
        if (term.is_phase) {
            out << line << "\n";
            line = "  ";
        }
    }
}

void write_legend(std::ostream& out) {
    out << "\nmodelled; seconds of a step, phases after their parts:";
    for (const TermName& term : term_names()) {
        out << " " << term.name << " " << term.meaning << (term.name == "T_step" ? ".\n" : ";");
    }
    out << "n devices of a node; T_opt,n and T_total,n update and step by the replication's "
           "formula; "
           "T_opt an update by one device; T_param_swap new parameters at a drive's rate; B_PCIe "
           "and "
           "B_SSD the rates of host link and drive.\n";
}

// Alternatives that lose get a line each, the others share one line.
void write_alternatives(const Row& row, std::ostream& out) {
    const Terms& best = row.found.plan->cost.terms;
    std::string equals;
    for (const Alternative& alternative : row.alternatives) {
        const std::string start =
            text("    instead ", alternative.field, " = ", alternative.value, ": ");
        if (!alternative.found.plan) {
            out << start << misfit_text(alternative.found) << "\n";
            continue;
        }
        const Terms& terms = alternative.found.plan->cost.terms;
        const double change = terms.step / best.step - 1;
        if (change < -kMargin) {
            out << start << percent(change)
                << ", which csd.durability and csd.tiers do not allow\n";
        } else if (change <= kMargin) {
            equals += text(" ", alternative.field, " = ", alternative.value, ";");
        } else {
            out << start << percent(change) << ", most of it in " << longest_excess(best, terms)
                << "\n";
        }
    }
    if (!equals.empty()) {
        out << "    no slower by more than " << 100 * kMargin << " %:" << equals << "\n";
    }
}

void write_row(const Row& row, std::ostream& out) {
    const Problem& problem = row.problem;
    const Plan& plan = *row.found.plan;
    out << "\nmodelled plan for nodes = " << problem.nodes
        << ", each with GPUs = " << problem.site.gpus
        << (problem.storage_nodes > 0
                ? text(", and storage nodes = ", problem.storage_nodes, ", each with")
                : " and")
        << " devices = " << problem.site.csds
        << (problem.storage_nodes > 0 && problem.site.csds_beside > 0
                ? text(", beside devices = ", problem.site.csds_beside, " of a node")
                : "")
        << " (" << row.found.costed << " choices costed, search " << three_digits(row.search_s)
        << " s, measured)\n   ";
    for (const auto& [field, value] : fields_of(plan.choice, problem)) {
        out << " " << field << " = " << value << ";";
    }
    out << "\n";
    out << "    why: " << reason_of(row) << "\n";
    write_terms(plan.cost.terms, out);
    out << describe(replication_of(problem, plan.choice, plan.cost.terms));
    out << "    memory:";
    for (const Fit& fit : fits_of(plan.cost.demand, problem.site)) {
        out << " " << fit.memory << " " << human_bytes(fit.needed) << " of "
            << human_bytes(fit.available) << ";";
    }
    const Volumes& bytes = plan.cost.volumes;
    out << "\n    bytes per parameter and node: host link down " << three_digits(bytes.host_down)
        << " up " << three_digits(bytes.host_up) << "; drives read "
        << three_digits(bytes.device_read) << " write " << three_digits(bytes.device_write)
        << "; network gradients " << three_digits(bytes.network_gradients) << " parameters "
        << three_digits(bytes.network_parameters) << "\n    twice as fast:";
    for (const Worth& worth : row.worths) {
        if (worth.gain >= 0.0005) {
            out << " " << worth.resource << " " << percent(-worth.gain) << ";";
        }
    }
    const double rate = updates_per_s(plan.choice, problem);
    out << "\n";
    if (rate > 0) {
        out << "    a device updates " << three_digits(rate / 1e6) << " Mparam/s";
        if (problem.site.network > 0) {
            const double nodes =
                crossover_nodes(problem.site.network, bytes_of_gather(plan.choice, problem),
                                problem.most_csds(), rate);
            out << "; the gather outlasts the update beyond " << three_digits(nodes) << " nodes";
        }
        out << "\n";
    }
    if (dollars(problem) > 0) {
        out << "    " << three_digits(tokens_per_s(problem, plan.cost.terms) / dollars(problem))
            << " tokens/s per $\n";
    }
    write_alternatives(row, out);
    out << "    settings: " << describe_settings(plan.choice, problem) << "\n";
}

nlohmann::json alternative_json(const Alternative& alternative, const Row& row) {
    nlohmann::json out = {{"field", alternative.field}, {"value", alternative.value}};
    if (alternative.found.plan) {
        const Terms& best = row.found.plan->cost.terms;
        const Terms& terms = alternative.found.plan->cost.terms;
        out["step_s"] = terms.step;
        out["slower"] = terms.step / best.step - 1;
        out["most_in"] = longest_excess(best, terms);
    } else {
        out["refused"] = misfit_text(alternative.found);
    }
    return out;
}

// An object with the plan's choice, terms, memories and rates.
nlohmann::json plan_json(const Plan& plan, const Problem& problem) {
    nlohmann::json out;
    for (const auto& [field, value] : fields_of(plan.choice, problem)) {
        out["choice"][field] = value;
    }
    if (const std::optional<Client> client = client_of(problem, plan.choice)) {
        out["client"] = name_of(*client);
        out["settings"] = describe_settings(plan.choice, problem);
    }
    const config::TierBytes bytes_of_tiers = tier_bytes(problem, plan.choice);
    out["tiers_bytes_of_rank"] = {{"gpu", bytes_of_tiers.gpu},
                                  {"memory", bytes_of_tiers.memory},
                                  {"drives", bytes_of_tiers.drive}};
    out["choice"]["ranks"] = {{"parameters", plan.choice.parameters.size()},
                              {"gradients", plan.choice.gradients.size()},
                              {"optimizer", plan.choice.optimizer.size()}};
    for (const TermName& term : term_names()) {
        out["terms_s"][std::string(term.name)] = plan.cost.terms.*term.value;
    }
    for (const Fit& fit : fits_of(plan.cost.demand, problem.site)) {
        out["memory_bytes"][std::string(fit.memory)] = {{"needed", fit.needed},
                                                        {"available", fit.available}};
    }
    const Volumes& bytes = plan.cost.volumes;
    out["bytes_per_parameter"] = {
        {"host_link", {{"down", bytes.host_down}, {"up", bytes.host_up}}},
        {"device_internal", {{"read", bytes.device_read}, {"write", bytes.device_write}}},
        {"network",
         {{"gradients", bytes.network_gradients}, {"parameters", bytes.network_parameters}}}};
    const Replication formula = replication_of(problem, plan.choice, plan.cost.terms);
    out["replication"] = {{"n", formula.n},
                          {"T_opt", formula.opt},
                          {"T_param_swap", formula.param_swap},
                          {"B_PCIe", formula.b_pcie},
                          {"B_SSD", formula.b_ssd},
                          {"T_opt_n", formula.opt_n},
                          {"T_total_n", formula.total_n}};
    if (dollars(problem) > 0) {
        out["price"] = dollars(problem);
    }
    const Wear wear = wear_of(problem, plan);
    out["written_bytes_per_step_and_drive"] = wear.written_bytes;
    if (wear.days > 0) {
        out["days_to_rated_tbw"] = wear.days;
    }
    if (problem.work.keeping == csd::Keeping::logged) {
        out["logs"] = to_json(logged_of(problem, plan), replay_seconds(problem, plan.choice));
    }
    out["step_s"] = plan.cost.terms.step;
    out["tokens_per_s"] = tokens_per_s(problem, plan.cost.terms);
    out["share_of_peak"] = problem.share_of_peak(plan.cost.terms.step);
    return out;
}

}  // namespace

Row plan_for(const Problem& problem, const Space& space) {
    Row row{.problem = problem, .found = {}};
    if (problem.work.sequences < problem.ranks()) {
        row.refusal =
            text(counted(static_cast<int>(problem.work.sequences), "sequence"), " for ",
                 counted(problem.ranks(), "GPU"),
                 " leave some without one: raise train.global_batch, or use --scaling weak");
        return row;
    }
    const auto start = std::chrono::steady_clock::now();
    row.found = search(problem, space);
    if (row.found.plan) {
        row.worths = worths_of(problem, row.found.plan->choice);
        row.alternatives = alternatives_to(*row.found.plan, problem, space);
    }
    row.search_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return row;
}

std::string describe(const std::vector<Row>& rows) {
    std::ostringstream out;
    write_summary(rows, out);
    for (const Row& row : rows) {
        if (row.found.plan) {
            write_verdict(row, out);
        }
    }
    for (const Row& row : rows) {
        if (row.found.plan) {
            write_row(row, out);
        }
    }
    const bool has_plan =
        std::ranges::any_of(rows, [](const Row& row) { return row.found.plan.has_value(); });
    if (has_plan) {
        write_legend(out);
    }
    return out.str();
}

nlohmann::json to_json(const std::vector<Row>& rows) {
    nlohmann::json out = nlohmann::json::array();
    for (const Row& row : rows) {
        nlohmann::json object = {{"origin", "modelled"},
                                 {"name", row.name},
                                 {"nodes", row.problem.nodes},
                                 {"storage_nodes", row.problem.storage_nodes},
                                 {"gpus", row.problem.ranks()},
                                 {"devices", row.problem.devices()},
                                 {"parameters", row.problem.work.model.parameters},
                                 {"sequences", row.problem.work.sequences},
                                 {"choices_costed", row.found.costed},
                                 {"search_s_measured", row.search_s}};
        if (row.found.plan) {
            object.update(plan_json(*row.found.plan, row.problem));
            object["binds"] = row.worths.front().resource;
            for (const Worth& worth : row.worths) {
                object["gain_if_twice_as_fast"][std::string(worth.resource)] = worth.gain;
            }
            object["alternatives"] = nlohmann::json::array();
            for (const Alternative& alternative : row.alternatives) {
                object["alternatives"].push_back(alternative_json(alternative, row));
            }
        } else {
            object["refused"] = refusal_of(row);
        }
        out.push_back(std::move(object));
    }
    return out;
}

}  // namespace nearstep::plan
