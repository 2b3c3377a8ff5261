#include "report/findings.hpp"

#include "base/error.hpp"
#include "report/html.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

namespace nearstep::report {

namespace {

// What to do if this resource is the bottleneck, by the planner's name for it.
std::string remedy(const std::string& resource) {
    using Remedy = std::pair<std::string_view, std::string_view>;
    constexpr std::array<Remedy, 6> kRemedies = {
        {{"GPU", "faster or more GPUs: storage and links keep up"},
         {"GPU links", "a faster link between GPU and host, or parameters that stay on the GPU"},
         {"device", "more CSDs in each node (or a narrower csd.state)"},
         {"host link", "a wider host link, gather.codec = \"delta\", or CSDs in more nodes"},
         {"network",
          "a faster network, gather.codec = \"delta\", or fewer nodes with more CSDs each"},
         {"host memory", "more host memory bandwidth, or payloads of fewer bytes"}}};
    for (const auto& [name, what] : kRemedies) {
        if (name == resource) {
            return std::string(what);
        }
    }
    return resource;
}

double number(const nlohmann::json& row, const char* key) {
    const auto found = row.find(key);
    return found != row.end() && found->is_number() ? found->get<double>() : 0;
}

std::string word_of(const nlohmann::json& row, const char* key) {
    const auto found = row.find(key);
    return found != row.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string percent(double share) { return formatted(100 * share, ".0f") + " %"; }

// The longest phase of a step, in words, and its share.
std::pair<std::string, double> longest_phase(const nlohmann::json& row) {
    std::pair<std::string, double> longest;
    for (const auto& [key, name] :
         {std::pair("forward_s", "forward"), std::pair("backward_s", "backward and gradients"),
          std::pair("update_s", "the update")}) {
        const double share = number(row, key) / number(row, "step_s");
        if (share > longest.second) {
            longest = {name, share};
        }
    }
    return longest;
}

// Rows of one column, keyed by the number of devices.
using Sweep = std::map<double, const nlohmann::json*>;

// What the rows of one sweep have in common, in words; empty if the row belongs to no sweep.
std::string label_of(const nlohmann::json& row) {
    const std::string column = word_of(row, "column");
    const std::string traffic = word_of(row, "gpu_traffic");
    if (column.empty()) {
        return word_of(row, "series");
    }
    return traffic.empty() ? column : text(column, ", GPU traffic ", traffic, ",");
}

// For rows that know what a step costs.
std::string finding_of_cost(const std::string& column, const Sweep& sweep) {
    const auto cheapest =
        std::min_element(sweep.begin(), sweep.end(), [](const auto& a, const auto& b) {
            return number(*a.second, "relative_cost") < number(*b.second, "relative_cost");
        });
    return text("measured, ", column, ": of ", sweep.size(), " numbers of devices ",
                cheapest->first, " give the cheapest step, relative cost ",
                formatted(number(*cheapest->second, "relative_cost"), ".3g"), ". ",
                std::next(cheapest) == sweep.end() ? "The next device may still pay."
                                                   : "Devices beyond cost more than they save.");
}

std::string finding_of_sweep(const std::string& column, const Sweep& sweep) {
    const nlohmann::json& most = *sweep.rbegin()->second;
    const auto [phase, share] = longest_phase(most);
    std::string out = text("measured, ", column, " with ", number(most, "devices"), " devices");
    if (number(most, "ranks") > 1) {
        out += text(" and ", number(most, "ranks"), " ranks");
    }
    out += text(": ", phase, " takes ", percent(share), " of a step of ",
                formatted(number(most, "step_s"), ".3g"), " s");
    if (sweep.size() < 2) {
        return out + ".";
    }
    const nlohmann::json& before = *std::next(sweep.rbegin())->second;
    const double gain = 1 - number(most, "step_s") / number(before, "step_s");
    out += text("; the last ", number(most, "devices") - number(before, "devices"),
                " devices shortened it by ", percent(gain), ". ");
    if (gain < 0.03) {
        return out + "More devices bring no more here.";
    }
    return out + (phase == "the update"
                      ? "The next device still pays."
                      : "Compute and gradients now take most: faster GPUs or narrower gradients "
                        "pay more than devices.");
}

}  // namespace

std::vector<std::string> findings_of_plans(const nlohmann::json& rows) {
    std::vector<std::string> findings;
    std::map<std::string, std::string> last;  // previous bottleneck of each series
    for (const nlohmann::json& row : rows) {
        const std::string binds = word_of(row, "binds");
        const std::string series = word_of(row, "series");
        if (binds.empty() || (!series.empty() && last[series] == binds)) {
            continue;
        }
        last[series] = binds;
        const char* more = series.empty() ? "" : " and more";
        std::string out =
            text("modelled, ", series, series.empty() ? "" : ", ", number(row, "nodes"), " nodes",
                 more, " with ", number(row, "devices"), " devices: ", binds, " binds");
        if (const auto gains = row.find("gain_if_twice_as_fast");
            gains != row.end() && gains->is_object()) {
            out += text(", twice as fast it shortens the step by ",
                        percent(number(*gains, binds.c_str())));
        }
        findings.push_back(out + ". What to add next: " + remedy(binds) + ".");
    }
    return findings;
}

std::vector<std::string> findings_of_steps(const nlohmann::json& rows) {
    std::map<std::string, Sweep> sweeps;
    std::vector<std::string> order;
    for (const nlohmann::json& row : rows) {
        const std::string column = label_of(row);
        if (column.empty() || number(row, "step_s") <= 0 || word_of(row, "origin") != "measured") {
            continue;
        }
        if (sweeps.find(column) == sweeps.end()) {
            order.push_back(column);
        }
        sweeps[column][number(row, "devices")] = &row;
    }
    std::vector<std::string> findings;
    findings.reserve(order.size());
    for (const std::string& column : order) {
        const Sweep& sweep = sweeps[column];
        const bool has_cost = sweep.begin()->second->contains("relative_cost");
        findings.push_back(has_cost ? finding_of_cost(column, sweep)
                                    : finding_of_sweep(column, sweep));
    }
    return findings;
}

}  // namespace nearstep::report
