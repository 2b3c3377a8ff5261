// Tables and JSON of the bytes that a run moved. Used by summary.cpp, and at a run's end.
#include "report/traffic_report.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "plan/cost.hpp"
#include "plan/published.hpp"
#include "report/prediction.hpp"
#include "shard/partition.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <numeric>
#include <optional>

namespace nearstep::report {

using trace::Counter;

namespace {

double parameter_steps(std::size_t parameters, std::size_t steps) {
    return static_cast<double>(parameters) * static_cast<double>(std::max<std::size_t>(steps, 1));
}

// Bytes per parameter and step of all steps.
class Moved {
public:
    Moved(const std::vector<StepReport>& steps, std::size_t parameters)
        : divisor_(parameter_steps(parameters, steps.size())) {
        for (const StepReport& step : steps) {
            for (std::size_t i = 0; i < trace::kCounters; ++i) {
                total_.bytes.at(i) += step.traffic.bytes.at(i);
            }
        }
    }
    explicit Moved(const RunRecord& record) : Moved(record.steps, record.parameters) {}

    template <typename... Counters>
    double operator()(Counters... counters) const {
        return static_cast<double>((total_[counters] + ...)) / divisor_;
    }

private:
    trace::TrafficSnapshot total_;
    double divisor_;
};

// One form of delta: its share of tiles, and its bytes per parameter and step.
struct FormShare {
    const char* form;
    double tiles;
    double bytes;
};

std::vector<FormShare> form_shares(const std::vector<StepReport>& steps, std::size_t parameters) {
    codec::DeltaTally tally;
    for (const StepReport& step : steps) {
        tally += step.deltas;
    }
    const auto tiles = std::accumulate(tally.tiles.begin(), tally.tiles.end(), std::uint64_t{0});
    std::vector<FormShare> shares;
    for (std::size_t form = 0; tiles > 0 && form < codec::kDeltaForms; ++form) {
        shares.push_back({codec::name_of(static_cast<codec::DeltaForm>(form)),
                          static_cast<double>(tally.tiles.at(form)) / static_cast<double>(tiles),
                          static_cast<double>(tally.bytes.at(form)) /
                              parameter_steps(parameters, steps.size())});
    }
    return shares;
}

// The paper's Table I, in units of M; the columns of the host link's table.
struct PaperRow {
    std::string states_read;
    std::string states_written;
    std::string parameters_read;
    std::string gradients_read;
    std::string gradients_written;
};

// SmartComp writes c x 2M, where the volume c is twice the share of elements kept (index and value,
// 4 bytes each).
PaperRow paper_row(const config::RunSettings& run) {
    if (run.mode == config::Mode::base) {
        return {"6M", "6M", "-", "2M", "2M"};
    }
    const bool is_dense =
        run.mode != config::Mode::su_o_c || run.compress.codec == config::PayloadCodec::dense;
    const std::string written = is_dense ? "2M"
                                : run.compress.codec == config::PayloadCodec::topk
                                    ? formatted("%.3gM", 4 * run.compress.keep)
                                    : "-";
    return {"-", "-", "2M", "-", written};
}

std::string host_and_other_links(const std::vector<RunRecord>& records) {
    std::string out =
        "Bytes over the host link per step, in units of M = 2 bytes per parameter (the 16-bit "
        "model); in brackets the\n"
        "paper's Table I, which sends gradients and new parameters as fp32 (2M):\n"
        "  mode    devices   states read  states written  parameters read  gradients read  "
        "gradients written\n";
    std::string others =
        "Bytes per parameter and step on the other links:\n"
        "  mode    devices   inside the devices: read  written   between ranks of a node: "
        "gradients  parameters   "
        "network: gradients  parameters\n";
    for (const RunRecord& record : records) {
        const Moved moved(record);
        const auto cell = [&](Counter counter, const std::string& paper, int width) {
            const std::string value = formatted("%.3gM (%s)", moved(counter) / 2, paper.c_str());
            return formatted("  %*s", width, value.c_str());
        };
        const PaperRow paper = paper_row(record.run);
        const std::string head =
            formatted("  %-7s %7d", config::name_of(record.run.mode), record.facts.devices);
        out += head + cell(Counter::host_state_read, paper.states_read, 12) +
               cell(Counter::host_state_write, paper.states_written, 14) +
               cell(Counter::host_parameters, paper.parameters_read, 15) +
               cell(Counter::host_gradients_read, paper.gradients_read, 14) +
               cell(Counter::host_gradients_write, paper.gradients_written, 17) + "\n";
        others +=
            head + formatted("  %24.4g  %7.4g  %34.4g  %10.4g  %19.4g  %10.4g\n",
                             moved(Counter::internal_read), moved(Counter::internal_write),
                             moved(Counter::node_gradients), moved(Counter::node_parameters),
                             moved(Counter::network_gradients), moved(Counter::network_parameters));
    }
    return out + others;
}

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

plan::SharedBytes formula_of(const PaperMethod& method, const RunRecord& record) {
    constexpr double kSmartCompVolume = 0.02;  // the paper's default
    return plan::paper_bytes(method.method, kSmartCompVolume, record.facts.nodes);
}

plan::SharedBytes shared_bytes(const RunRecord& record) {
    const Moved moved(record);
    return {.host_link = moved(Counter::host_state_read, Counter::host_state_write,
                               Counter::host_gradients_read, Counter::host_gradients_write,
                               Counter::host_parameters),
            .network = moved(Counter::network_gradients, Counter::network_parameters)};
}

// "su+o+c, q4, state fp32, gather delta".
std::string settings_of(const config::RunSettings& run) {
    std::string name = config::name_of(run.mode);
    if (run.compress.codec != config::PayloadCodec::dense) {
        name += text(", ", config::name_of(run.compress.codec));
    }
    if (run.csd.state != arith::StateFormat::fp32) {
        name += text(", state ", nearstep::name_of(run.csd.state));
    }
    if (run.gather.codec != config::ParameterCodec::dense) {
        name += text(", gather ", config::name_of(run.gather.codec));
    }
    return name;
}

std::string shared_links_table(const std::vector<RunRecord>& records) {
    const auto row = [](const std::string& name, const char* source,
                        const plan::SharedBytes& bytes) {
        return formatted("  %-42s %-8s  %9.3f  %7.3f  %7.3f\n", name.c_str(), source,
                         bytes.host_link, bytes.network, bytes.total());
    };
    const int nodes = records.front().facts.nodes;
    std::string out = formatted(
        "Bytes per parameter and step on the links that devices and nodes share, %d "
        "node%s:\n  %-42s %-8s  host link  network    total\n",
        nodes, nodes == 1 ? "" : "s", "", "");
    for (const PaperMethod& method : kMethods) {
        out += row(method.name, "formula", formula_of(method, records.front()));
    }
    for (const RunRecord& record : records) {
        out += row("this run: " + settings_of(record.run), "measured", shared_bytes(record));
    }
    return out;
}

// A column of the table of formulas.
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

std::optional<plan::Volumes> formula_volumes(const RunRecord& record) {
    if (record.run.mode == config::Mode::base || record.run.compress.warmup_steps > 0 ||
        !record.facts.has_equal_nodes) {
        return std::nullopt;
    }
    const RunPlan of_run = run_plan_of(record);
    plan::Volumes volumes = plan::volumes_of(of_run.problem, of_run.choice);
    plan::Choice with_drives = of_run.choice;
    with_drives.shares = {};  // the devices of all tiers count what they move
    const plan::Volumes of_devices = plan::volumes_of(of_run.problem, with_drives);
    for (const auto column : {&plan::Volumes::host_down, &plan::Volumes::host_up,
                              &plan::Volumes::device_read, &plan::Volumes::device_write}) {
        volumes.*column = of_devices.*column;
    }
    const double padding =
        static_cast<double>(shard::tiles_of(record.parameters) * shard::kTileElems) /
        static_cast<double>(record.parameters);
    for (const LinkColumn& column : kLinkColumns) {
        const bool is_of_computing = column.counter == Counter::network_gradients ||
                                     column.counter == Counter::network_parameters;
        volumes.*column.formula *=
            padding * (is_of_computing ? record.facts.nodes : of_run.problem.homes());
    }
    volumes.device_read -= record.facts.kept_bytes / static_cast<double>(record.parameters);
    volumes.device_write -= record.facts.unwritten_bytes / static_cast<double>(record.parameters);
    return volumes;
}

// Empty if no record has formulas.
std::string formula_table(const std::vector<RunRecord>& records) {
    std::string out;
    for (const RunRecord& record : records) {
        const auto volumes = formula_volumes(record);
        if (!volumes) {
            continue;
        }
        const std::string names =
            text(record.facts.parameter_ranks, ", ", record.facts.gradient_ranks, ", ",
                 record.facts.optimizer_ranks);
        out += formatted("  %-32s", names.c_str());
        const Moved moved(record);
        for (const LinkColumn& column : kLinkColumns) {
            out += formatted("  %7.4g (%.4g)", moved(column.counter), (*volumes).*column.formula);
        }
        out += "\n";
    }
    return out.empty()
               ? ""
               : "Bytes per parameter and step, measured (by the planner's formulas), by the ranks"
                 " that hold parameters, gradients, state:\n"
                 "  placement                       host link: gradients      parameters   "
                 "devices: read           written   network: gradients      parameters\n" +
                     out;
}

}  // namespace

nlohmann::json links_json(const std::vector<StepReport>& steps, std::size_t parameters) {
    const Moved moved(steps, parameters);
    return {{"host_link",
             {{"state_read", moved(Counter::host_state_read)},
              {"state_write", moved(Counter::host_state_write)},
              {"gradients", moved(Counter::host_gradients_read, Counter::host_gradients_write)},
              {"gradients_read", moved(Counter::host_gradients_read)},
              {"gradients_write", moved(Counter::host_gradients_write)},
              {"parameters", moved(Counter::host_parameters)}}},
            {"device_internal",
             {{"read", moved(Counter::internal_read)}, {"write", moved(Counter::internal_write)}}},
            {"gpu_link",
             {{"state_read", moved(Counter::gpu_state_read)},
              {"state_write", moved(Counter::gpu_state_write)}}},
            {"network",
             {{"gradients", moved(Counter::network_gradients)},
              {"parameters", moved(Counter::network_parameters)}}},
            {"node",
             {{"gradients", moved(Counter::node_gradients)},
              {"parameters", moved(Counter::node_parameters)}}}};
}

nlohmann::json shared_links_json(const RunRecord& record) {
    const auto json_of = [](const plan::SharedBytes& bytes) -> nlohmann::json {
        return {
            {"host_link", bytes.host_link}, {"network", bytes.network}, {"total", bytes.total()}};
    };
    nlohmann::json json = {{"measured", json_of(shared_bytes(record))}};
    for (const PaperMethod& method : kMethods) {
        json[method.key] = json_of(formula_of(method, record));
    }
    return json;
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

nlohmann::json deltas_json(const std::vector<StepReport>& steps, std::size_t parameters) {
    nlohmann::json json;
    for (const FormShare& share : form_shares(steps, parameters)) {
        json[share.form] = {{"tile_share", share.tiles}, {"bytes_per_parameter", share.bytes}};
    }
    return json;
}

std::string describe_deltas(const RunRecord& record) {
    const std::vector<FormShare> shares = form_shares(record.steps, record.parameters);
    double bytes = 0;
    std::string out;
    for (const FormShare& share : shares) {
        bytes += share.bytes;
        out += formatted("; %s %.1f %% of the tiles with %.3g", share.form, share.tiles * 100,
                         share.bytes);
    }
    return shares.empty()
               ? ""
               : formatted("parameters by deltas: %.4g bytes per parameter and step", bytes) + out;
}

std::string traffic_table(const std::vector<RunRecord>& records) {
    return host_and_other_links(records) + shared_links_table(records) + formula_table(records);
}

}  // namespace nearstep::report
