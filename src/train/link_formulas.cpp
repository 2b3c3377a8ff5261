#include "train/link_formulas.hpp"

#include "shard/partition.hpp"
#include "train/run_plan.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>

namespace nearstep::train {

using trace::Counter;

namespace {

// A column of the table.
struct LinkColumn {
    Counter counter;
    double plan::Volumes::*formula;
};

constexpr std::array<LinkColumn, 6> kLinkColumns = {{
    {Counter::host_gradients_write, &plan::Volumes::host_down},
    {Counter::host_parameters, &plan::Volumes::host_up},
    {Counter::internal_read, &plan::Volumes::device_read},
    {Counter::internal_write, &plan::Volumes::device_write},
    {Counter::network_gradients, &plan::Volumes::network_gradients},
    {Counter::network_parameters, &plan::Volumes::network_parameters},
}};

}  // namespace

std::optional<plan::Volumes> formula_volumes(const RunRecord& record) {
    const config::Run& run = record.run;
    if (run.mode == config::Mode::base || run.compress.warmup_steps > 0 ||
        !record.facts.has_equal_nodes) {
        return std::nullopt;
    }
    const RunPlan of_run = run_plan_of(record);
    plan::Volumes volumes = plan::volumes_of(of_run.problem, of_run.choice);
    const double padding =
        static_cast<double>(shard::tiles_of(record.parameters) * shard::kTileElems) /
        static_cast<double>(record.parameters);
    for (const LinkColumn& column : kLinkColumns) {
        volumes.*column.formula *= record.facts.nodes * padding;
    }
    volumes.device_read -= record.facts.kept_bytes / static_cast<double>(record.parameters);
    return volumes;
}

std::string formula_table(const std::vector<RunRecord>& records) {
    std::string out;
    for (const RunRecord& record : records) {
        const auto volumes = formula_volumes(record);
        if (!volumes) {
            continue;
        }
        if (out.empty()) {
            out =
                "Bytes per parameter and step, measured (by the planner's formulas), by placement"
                " of parameters, gradients, state:\n"
                "  placement                       host link: gradients      parameters   "
                "devices: read           written   network: gradients      parameters\n";
        }
        const config::PlacementSettings& placement = record.run.placement;
        std::array<char, 512> line{};
        std::snprintf(
            line.data(), line.size(), "  %-32s",
            (placement.parameters + ", " + placement.gradients + ", " + placement.optimizer)
                .c_str());
        out += line.data();
        const trace::TrafficSnapshot traffic = total_traffic(record.steps);
        for (const LinkColumn& column : kLinkColumns) {
            std::snprintf(line.data(), line.size(), "  %7.4g (%.4g)",
                          bytes_per_parameter(traffic, column.counter, record.parameters,
                                              record.steps.size()),
                          (*volumes).*column.formula);
            out += line.data();
        }
        out += "\n";
    }
    return out;
}

nlohmann::json formula_json(const RunRecord& record) {
    const auto volumes = formula_volumes(record);
    if (!volumes) {
        return {};
    }
    return {
        {"host_link", {{"gradients", volumes->host_down}, {"parameters", volumes->host_up}}},
        {"device_internal", {{"read", volumes->device_read}, {"write", volumes->device_write}}},
        {"network",
         {{"gradients", volumes->network_gradients}, {"parameters", volumes->network_parameters}}}};
}

}  // namespace nearstep::train
