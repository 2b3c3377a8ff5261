#include "train/shared_links.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>

namespace nearstep::train {

using trace::Counter;

namespace {

constexpr double kSmartCompVolume = 0.02;  // the paper's default

struct PaperMethod {
    const char* name;
    const char* key;
    plan::Method method;
};

constexpr std::array<PaperMethod, 3> kMethods = {{
    {"ZeRO-Infinity", "zero_infinity", plan::Method::zero_infinity},
    {"SmartUpdate", "smart_update", plan::Method::smart_update},
    {"SmartComp, 2 %", "smart_comp_2_percent", plan::Method::smart_comp},
}};

std::string row(const std::string& name, const char* source, const plan::SharedBytes& bytes) {
    std::array<char, 256> line{};
    std::snprintf(line.data(), line.size(), "  %-42s %-8s  %9.3f  %7.3f  %7.3f\n", name.c_str(),
                  source, bytes.host_link, bytes.network, bytes.total());
    return line.data();
}

// "su+o+c, q4, state fp32, gather delta".
std::string settings_of(const config::Run& run) {
    std::string name = config::name_of(run.mode);
    if (run.compress.codec != "dense") {
        name += ", " + run.compress.codec;
    }
    if (run.csd.state != "fp32") {
        name += ", state " + run.csd.state;
    }
    if (run.gather.codec != "dense") {
        name += ", gather " + run.gather.codec;
    }
    return name;
}

nlohmann::json json_of(const plan::SharedBytes& bytes) {
    return {{"host_link", bytes.host_link}, {"network", bytes.network}, {"total", bytes.total()}};
}

}  // namespace

plan::SharedBytes shared_bytes(const RunRecord& record) {
    const trace::TrafficSnapshot traffic = total_traffic(record.steps);
    plan::SharedBytes bytes;
    const auto add = [&](double& sum, Counter counter) {
        sum += bytes_per_parameter(traffic, counter, record.parameters, record.steps.size());
    };
    for (const Counter counter :
         {Counter::host_state_read, Counter::host_state_write, Counter::host_gradients_read,
          Counter::host_gradients_write, Counter::host_parameters}) {
        add(bytes.host_link, counter);
    }
    add(bytes.network, Counter::network_gradients);
    add(bytes.network, Counter::network_parameters);
    return bytes;
}

std::string shared_links_table(const std::vector<RunRecord>& records) {
    std::array<char, 256> head{};
    std::snprintf(head.data(), head.size(),
                  "Bytes per parameter and step on the links that devices and nodes share, %d "
                  "node%s:\n  %-42s %-8s  host link  network    total\n",
                  records.front().facts.nodes, records.front().facts.nodes == 1 ? "" : "s", "", "");
    std::string out = head.data();
    for (const PaperMethod& one : kMethods) {
        out += row(one.name, "formula",
                   plan::paper_bytes(one.method, kSmartCompVolume, records.front().facts.nodes));
    }
    for (const RunRecord& record : records) {
        out += row("this run: " + settings_of(record.run), "measured", shared_bytes(record));
    }
    return out;
}

nlohmann::json shared_links_json(const RunRecord& record) {
    nlohmann::json json = {{"measured", json_of(shared_bytes(record))}};
    for (const PaperMethod& one : kMethods) {
        json[one.key] =
            json_of(plan::paper_bytes(one.method, kSmartCompVolume, record.facts.nodes));
    }
    return json;
}

}  // namespace nearstep::train
