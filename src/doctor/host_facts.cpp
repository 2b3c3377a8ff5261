// Passes what a host has to another one, as JSON, which may come from a host that is damaged or
// hostile. Used by site_text.hpp's callers.
#include "base/error.hpp"
#include "base/wording.hpp"
#include "doctor/site_text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace nearstep::doctor {

namespace {

using FactsJson = nlohmann::json;

constexpr int kMostCount = 1'000'000;
constexpr int kNoNode = -1;

// Texts stand in messages, and in comments of a site.
std::string text_in(const FactsJson& from, const char* key) {
    return on_one_line(from.at(key).get<std::string>());
}

double number_in(const FactsJson& from, const char* key) {
    const auto value = from.at(key).get<double>();
    if (!std::isfinite(value) || value < 0) {
        throw Error(text(key, " is ", value));
    }
    return value;
}

int count_of(const FactsJson& from) {
    if (!from.is_number_integer()) {
        throw Error("a count is no whole number");
    }
    const auto value = from.get<std::int64_t>();
    const bool is_larger = from.is_number_unsigned() && from.get<std::uint64_t>() > kMostCount;
    if (value < kNoNode || value > kMostCount || is_larger) {
        throw Error(text("a count is ", value));
    }
    return static_cast<int>(value);
}

std::optional<int> node_of(const FactsJson& from) {
    const int node = count_of(from);
    return node == kNoNode ? std::nullopt : std::optional(node);
}

FactsJson json_of(const std::optional<int>& node) { return node.value_or(kNoNode); }

HostFacts read_facts(const FactsJson& from) {
    HostFacts facts{.host = text_in(from, "host"),
                    .cores = std::max(count_of(from.at("cores")), 1),
                    .gpus = std::max(count_of(from.at("gpus")), 0),
                    .gpu = text_in(from, "gpu"),
                    .operations = number_in(from, "operations"),
                    .gpu_memory = number_in(from, "gpu_memory"),
                    .gpu_memory_rate = number_in(from, "gpu_memory_rate"),
                    .gpu_link = number_in(from, "gpu_link"),
                    .memory = number_in(from, "memory"),
                    .memory_rate = number_in(from, "memory_rate"),
                    .drives = {},
                    .interface = text_in(from, "interface"),
                    .network = number_in(from, "network"),
                    .nodes = {},
                    .gpu_nodes = {},
                    .adapters = {}};
    for (const FactsJson& drive : from.at("drives")) {
        facts.drives.push_back({.folder = text_in(drive, "folder"),
                                .device = text_in(drive, "device"),
                                .rate = number_in(drive, "rate"),
                                .free = number_in(drive, "free"),
                                .rated = number_in(drive, "rated"),
                                .obstacle = text_in(drive, "obstacle"),
                                .node = node_of(drive.at("node"))});
    }
    for (const FactsJson& node : from.at("nodes")) {
        facts.nodes.push_back(count_of(node));
    }
    for (const FactsJson& node : from.at("gpu_nodes")) {
        facts.gpu_nodes.push_back(node_of(node));
    }
    for (const FactsJson& adapter : from.at("adapters")) {
        facts.adapters.push_back({text_in(adapter, "name"), node_of(adapter.at("node"))});
    }
    return facts;
}

}  // namespace

FactsJson to_json(const HostFacts& facts) {
    FactsJson drives = FactsJson::array();
    for (const DriveFacts& drive : facts.drives) {
        drives.push_back({{"folder", drive.folder},
                          {"device", drive.device},
                          {"rate", drive.rate},
                          {"free", drive.free},
                          {"rated", drive.rated},
                          {"obstacle", drive.obstacle},
                          {"node", json_of(drive.node)}});
    }
    FactsJson gpu_nodes = FactsJson::array();
    for (const std::optional<int>& node : facts.gpu_nodes) {
        gpu_nodes.push_back(json_of(node));
    }
    FactsJson adapters = FactsJson::array();
    for (const AdapterFacts& adapter : facts.adapters) {
        adapters.push_back({{"name", adapter.name}, {"node", json_of(adapter.node)}});
    }
    return {{"host", facts.host},
            {"cores", facts.cores},
            {"gpus", facts.gpus},
            {"gpu", facts.gpu},
            {"operations", facts.operations},
            {"gpu_memory", facts.gpu_memory},
            {"gpu_memory_rate", facts.gpu_memory_rate},
            {"gpu_link", facts.gpu_link},
            {"memory", facts.memory},
            {"memory_rate", facts.memory_rate},
            {"drives", drives},
            {"interface", facts.interface},
            {"network", facts.network},
            {"nodes", facts.nodes},
            {"gpu_nodes", gpu_nodes},
            {"adapters", adapters}};
}

HostFacts host_facts(const std::string& json) {
    try {
        return read_facts(FactsJson::parse(json));
    } catch (const FactsJson::exception& error) {
        throw Error(text("A host's findings cannot be read: ", error.what()));
    } catch (const Error& error) {
        throw Error(text("A host's findings cannot be true: ", error.what()));
    }
}

}  // namespace nearstep::doctor
