#include "train/summary.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/version.hpp"
#include "model/gpu_peak.hpp"
#include "train/gpu_report.hpp"
#include "train/link_formulas.hpp"
#include "train/shared_links.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace nearstep::train {

using trace::Counter;

trace::TrafficSnapshot total_traffic(const std::vector<StepReport>& steps) {
    trace::TrafficSnapshot total;
    for (const StepReport& step : steps) {
        for (std::size_t i = 0; i < trace::kCounters; ++i) {
            total.bytes.at(i) += step.traffic.bytes.at(i);
        }
    }
    return total;
}

namespace {

// printf to a string. Only this file passes `format`.
template <typename... Values>
std::string formatted(const char* format, Values... values) {
    const int length = std::snprintf(nullptr, 0, format, values...);
    std::string out(static_cast<std::size_t>(length) + 1, '\0');
    std::snprintf(out.data(), out.size(), format, values...);
    out.pop_back();
    return out;
}

nlohmann::json links_json(const trace::TrafficSnapshot& traffic, std::size_t parameters,
                          std::size_t steps) {
    const auto bytes = [&](Counter counter) {
        return bytes_per_parameter(traffic, counter, parameters, steps);
    };
    return {
        {"host_link",
         {{"state_read", bytes(Counter::host_state_read)},
          {"state_write", bytes(Counter::host_state_write)},
          {"gradients", bytes(Counter::host_gradients_read) + bytes(Counter::host_gradients_write)},
          {"gradients_read", bytes(Counter::host_gradients_read)},
          {"gradients_write", bytes(Counter::host_gradients_write)},
          {"parameters", bytes(Counter::host_parameters)}}},
        {"device_internal",
         {{"read", bytes(Counter::internal_read)}, {"write", bytes(Counter::internal_write)}}},
        {"gpu_link",
         {{"state_read", bytes(Counter::gpu_state_read)},
          {"state_write", bytes(Counter::gpu_state_write)}}},
        {"network",
         {{"gradients", bytes(Counter::network_gradients)},
          {"parameters", bytes(Counter::network_parameters)}}},
        {"node",
         {{"gradients", bytes(Counter::node_gradients)},
          {"parameters", bytes(Counter::node_parameters)}}}};
}

codec::DeltaTally total_deltas(const std::vector<StepReport>& steps) {
    codec::DeltaTally total;
    for (const StepReport& step : steps) {
        total += step.deltas;
    }
    return total;
}

// One form of delta: its share of tiles, and its bytes per parameter and step.
struct FormShare {
    const char* form;
    double tiles;
    double bytes;
};

std::vector<FormShare> form_shares(const codec::DeltaTally& tally, std::size_t parameters,
                                   std::size_t steps) {
    const auto tiles = std::accumulate(tally.tiles.begin(), tally.tiles.end(), std::uint64_t{0});
    const double all =
        static_cast<double>(parameters) * static_cast<double>(std::max<std::size_t>(steps, 1));
    std::vector<FormShare> shares;
    for (std::size_t form = 0; tiles > 0 && form < codec::kDeltaForms; ++form) {
        shares.push_back({codec::name_of(static_cast<codec::DeltaForm>(form)),
                          static_cast<double>(tally.tiles.at(form)) / static_cast<double>(tiles),
                          static_cast<double>(tally.bytes.at(form)) / all});
    }
    return shares;
}

// Adds "deltas" if there are any.
void add_deltas(nlohmann::json& json, const codec::DeltaTally& tally, std::size_t parameters,
                std::size_t steps) {
    for (const FormShare& share : form_shares(tally, parameters, steps)) {
        json["deltas"][share.form] = {{"tile_share", share.tiles},
                                      {"bytes_per_parameter", share.bytes}};
    }
}

PhaseSeconds mean_seconds(const std::vector<StepReport>& steps) {
    PhaseSeconds mean;
    const auto count = static_cast<double>(std::max<std::size_t>(steps.size(), 1));
    for (const StepReport& step : steps) {
        mean.forward += step.seconds.forward / count;
        mean.backward += step.seconds.backward / count;
        mean.update += step.seconds.update / count;
        mean.hidden += step.seconds.hidden / count;
    }
    return mean;
}

nlohmann::json seconds_json(const PhaseSeconds& seconds) {
    return {{"forward", seconds.forward},
            {"backward", seconds.backward},
            {"update", seconds.update},
            {"hidden", seconds.hidden}};
}

// The paper's Table I, in units of M; the columns of traffic_table.
struct PaperRow {
    const char* states_read;
    const char* states_written;
    const char* parameters_read;
    const char* gradients_read;
    std::string gradients_written;
};

// SmartComp writes c x 2M, where the volume c is twice the share of elements kept (index and value,
// 4 bytes each).
PaperRow paper_row(const config::Run& run) {
    switch (run.mode) {
        case config::Mode::base:
            return {"6M", "6M", "-", "2M", "2M"};
        case config::Mode::su:
        case config::Mode::su_o:
            return {"-", "-", "2M", "-", "2M"};
        case config::Mode::su_o_c:
            if (run.compress.codec == "topk") {
                return {"-", "-", "2M", "-", formatted("%.3gM", 4 * run.compress.keep)};
            }
            return {"-", "-", "2M", "-", run.compress.codec == "dense" ? "2M" : "-"};
    }
    return {"", "", "", "", ""};
}

}  // namespace

double bytes_per_parameter(const trace::TrafficSnapshot& traffic, Counter counter,
                           std::size_t parameters, std::size_t steps) {
    const double all =
        static_cast<double>(parameters) * static_cast<double>(std::max<std::size_t>(steps, 1));
    return static_cast<double>(traffic[counter]) / all;
}

namespace {

double kept_share(const config::Run& run) {
    return run.compress.codec == "topk" ? run.compress.keep : 1.0;
}

double share_of_dense(const config::Run& run, double payload_bytes_per_parameter) {
    return payload_bytes_per_parameter / static_cast<double>(size_bytes(run.model.dtype));
}

nlohmann::json codec_json(const RunRecord& record) {
    const config::Run& run = record.run;
    const double payload_bytes_per_parameter = record.facts.payload_bytes_per_parameter;
    return {{"codec", run.compress.codec},
            {"where", record.facts.encodes_on_gpu ? "gpu" : "host"},
            {"rounding", run.compress.rounding},
            {"error_feedback", run.compress.error_feedback},
            {"warmup_steps", run.compress.warmup_steps},
            {"kept_share_of_elements", kept_share(run)},
            {"payload_bytes_per_parameter", payload_bytes_per_parameter},
            {"volume_share_of_dense", share_of_dense(run, payload_bytes_per_parameter)}};
}

}  // namespace

std::string describe_gradients(const config::Run& run, double payload_bytes_per_parameter) {
    std::string line = formatted(
        "gradients: %s, keeps %.4g %% of the elements in a volume of %.4g bytes per parameter, "
        "%.4g "
        "%% of the dense %s",
        run.compress.codec.c_str(), 100 * kept_share(run), payload_bytes_per_parameter,
        100 * share_of_dense(run, payload_bytes_per_parameter), name_of(run.model.dtype));
    if (run.compress.rounding == "stochastic") {
        line += ", rounds stochastically";
    }
    if (run.compress.error_feedback) {
        line += ", feeds back what is lost";
    }
    if (run.compress.warmup_steps > 0) {
        line += formatted(", dense for the first %lld steps",
                          static_cast<long long>(run.compress.warmup_steps));
    }
    return line;
}

double tokens_per_second(const RunRecord& record) {
    const double tokens = static_cast<double>(record.run.train.global_batch) *
                          record.run.model.context * static_cast<double>(record.steps.size());
    return record.seconds > 0 ? tokens / record.seconds : 0;
}

namespace {

std::optional<double> utilisation(const RunRecord& record) {
    return record.gpu
               ? flop_utilisation(*record.gpu, tokens_per_second(record),
                                  model::operations_per_token(record.run.model, record.parameters),
                                  record.ranks)
               : std::nullopt;
}

// Operations on any device; on GPUs also memory, traffic and utilisation.
void add_compute(nlohmann::json& json, const RunRecord& record) {
    json["model_operations_per_token"] =
        model::operations_per_token(record.run.model, record.parameters);
    if (record.gpu) {
        json["gpu"] = to_json(*record.gpu);
    }
    if (const std::optional<double> share = utilisation(record)) {
        json["model_flop_utilisation"] = *share;
    }
}

void add_speed_of_light(nlohmann::json& json, const RunRecord& record) {
    if (!record.light) {
        return;
    }
    const SpeedOfLight& light = *record.light;
    const SpeedOfLight::Least least = light.least();
    json["speed_of_light"] = {{"share", nullptr},
                              {"bound", nullptr},
                              {"compute_s", light.compute_seconds()},
                              {"storage_s", light.storage_seconds()},
                              {"operations_per_s", light.ceilings().operations},
                              {"state_bytes_per_s", light.ceilings().state_bytes}};
    if (least.bound != SpeedOfLight::Bound::none && record.seconds > 0) {
        json["speed_of_light"]["bound"] = name_of(least.bound);
        json["speed_of_light"]["share"] =
            least.seconds * static_cast<double>(record.steps.size()) / record.seconds;
    }
}

void add_lanes(nlohmann::json& json, const RunRecord& record) {
    if (!record.lanes) {
        return;
    }
    double together = 0;
    for (std::size_t lane = 0; lane < record.lanes->size(); ++lane) {
        json["lanes"][trace::name_of(static_cast<trace::Lane>(lane))] = record.lanes->at(lane);
        together += record.lanes->at(lane);
    }
    json["lanes"]["together"] = together;
}

void add_heldout_loss(nlohmann::json& json, const RunRecord& record) {
    const auto heldout = [&](double value) {
        return record.heldout_loss ? nlohmann::json(value) : nlohmann::json();
    };
    const HeldOutLoss loss = record.heldout_loss.value_or(HeldOutLoss{});
    json["heldout_loss"] = heldout(loss.nats_per_token);
    json["heldout_nats_per_byte"] = heldout(loss.nats_per_byte);
    json["heldout_bits_per_byte"] = heldout(loss.bits_per_byte());
}

// The rates that limit a run whose links are shaped.
void add_links(nlohmann::json& json, const config::LinkSettings& link) {
    if (link.are_shaped()) {
        json["links"] = {{"device_read_gb_s", link.device_read_gb_s},
                         {"device_write_gb_s", link.device_write_gb_s},
                         {"host_gb_s", link.host_gb_s},
                         {"host_total_gb_s", link.host_total_gb_s},
                         {"network_gb_s", link.network_gb_s},
                         {"scale", link.scale}};
    }
}

// Placement and transports.
void add_layout(nlohmann::json& json, const RunRecord& record) {
    add_links(json, record.run.link);
    json["shared_links"] = shared_links_json(record);
    json["placement"] = {{"parameters", record.run.placement.parameters},
                         {"gradients", record.run.placement.gradients},
                         {"optimizer", record.run.placement.optimizer},
                         {"copies", record.facts.copies},
                         {"dense_sums", record.facts.has_dense_sums},
                         {"vector_bytes", record.vector_bytes}};
    const auto word = [](const std::string& value) {
        return value.empty() ? nlohmann::json() : nlohmann::json(value);
    };
    json["transport"] = word(record.facts.transport);
    json["payload_transport"] = word(record.facts.payload_transport);
    json["parameter_transport"] = word(record.facts.parameter_transport);
}

void add_seconds(nlohmann::json& json, const RunRecord& record) {
    json["phases_s"]["commit"] =
        record.steps.empty() ? 0.0
                             : record.commit_seconds / static_cast<double>(record.steps.size());
    add_lanes(json, record);
    if (record.expected) {
        json["modelled_s"] = {
            {"gradients", record.expected->backward},
            {"update", record.expected->update},
            {"calibration", plan::describe(record.calibration, record.run, record.facts.nodes)}};
    }
}

std::int64_t guesses_in(std::span<const StepReport> steps, engine::Guess which) {
    return std::ranges::count(steps, which, &StepReport::guess);
}

}  // namespace

nlohmann::json to_json(const RunRecord& record) {
    std::vector<double> losses;
    std::int64_t skipped = 0;
    const std::int64_t misses = guesses_in(record.steps, engine::Guess::wrong);
    for (const StepReport& step : record.steps) {
        losses.push_back(step.loss);
        skipped += step.is_skipped ? 1 : 0;
    }
    nlohmann::json json = {
        {"commit", commit()},
        {"config", record.run.name},
        {"site", record.run.site},
        {"mode", config::name_of(record.run.mode)},
        {"ranks", record.ranks},
        {"nodes", record.facts.nodes},
        {"devices", record.facts.devices},
        {"parameters", record.parameters},
        {"steps", record.steps.empty() ? 0 : record.steps.back().step},
        {"first_step", record.steps.empty() ? 0 : record.steps.front().step},
        {"start_s", {{"search", record.start.search}, {"begin", record.start.begin}}},
        {"seconds", record.seconds},
        {"tokens_per_s", tokens_per_second(record)},
        {"losses", losses},
        {"skipped_steps", skipped},
        {"clip_guesses", guesses_in(record.steps, engine::Guess::right) + misses},
        {"clip_misses", misses},
        {"compress", codec_json(record)},
        {"masters_xxh3",
         record.masters_digest ? nlohmann::json(to_hex(*record.masters_digest)) : nlohmann::json()},
        {"endurance", to_json(record.endurance)},
        {"network_sent_bytes", record.network_sent_bytes},
        {"phases_s", seconds_json(mean_seconds(record.steps))},
        {"bytes_per_parameter",
         links_json(total_traffic(record.steps), record.parameters, record.steps.size())}};
    add_layout(json, record);
    json["formula_bytes_per_parameter"] = formula_json(record);
    add_compute(json, record);
    add_speed_of_light(json, record);
    add_deltas(json, total_deltas(record.steps), record.parameters, record.steps.size());
    add_seconds(json, record);
    json["train_loss"] = losses.empty() ? nlohmann::json() : nlohmann::json(losses.back());
    add_heldout_loss(json, record);
    json["checkpoint"] =
        record.checkpoint.empty() ? nlohmann::json() : nlohmann::json(record.checkpoint);
    return json;
}

nlohmann::json to_json(const StepReport& report, std::size_t parameters) {
    nlohmann::json json = {{"step", report.step},
                           {"loss", report.loss},
                           {"gradient_norm", report.gradient_norm},
                           {"learning_rate", report.learning_rate},
                           {"loss_scale", report.loss_scale},
                           {"skipped", report.is_skipped},
                           {"phases_s", seconds_json(report.seconds)},
                           {"bytes_per_parameter", links_json(report.traffic, parameters, 1)}};
    add_deltas(json, report.deltas, parameters, 1);
    return json;
}

std::string describe_guesses(const RunRecord& record) {
    const std::int64_t right = guesses_in(record.steps, engine::Guess::right);
    const std::int64_t wrong = guesses_in(record.steps, engine::Guess::wrong);
    return right + wrong == 0
               ? ""
               : text("updates of ", right + wrong, " of ", record.steps.size(),
                      " steps began in backward on the guess that the step is not clipped; ", wrong,
                      " were done again");
}

std::string describe_deltas(const RunRecord& record) {
    const auto shares =
        form_shares(total_deltas(record.steps), record.parameters, record.steps.size());
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

std::string describe_gpu(const RunRecord& record) {
    return record.gpu ? describe(*record.gpu, utilisation(record)) : "";
}

std::string describe_expected(const RunRecord& record) {
    if (!record.expected) {
        return "";
    }
    const PhaseSeconds measured = mean_seconds(record.steps);
    std::string out = formatted(
        "update: %.4g s measured, %.4g s modelled from the rates of the links; "
        "backward: %.4g s measured, of which gradients take %.4g s, modelled",
        measured.update, record.expected->update, measured.backward, record.expected->backward);
    for (const std::string& line :
         plan::describe(record.calibration, record.run, record.facts.nodes)) {
        out += "\nmodelled with " + line;
    }
    return out;
}

std::string traffic_table(const std::vector<RunRecord>& records) {
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
        const trace::TrafficSnapshot traffic = total_traffic(record.steps);
        const auto bytes = [&](Counter counter) {
            return bytes_per_parameter(traffic, counter, record.parameters, record.steps.size());
        };
        const auto cell = [&](Counter counter, const char* paper) {
            return formatted("%.3gM (%s)", bytes(counter) / 2, paper);
        };
        const PaperRow paper = paper_row(record.run);
        const char* mode = config::name_of(record.run.mode);
        out +=
            formatted("  %-7s %7d  %12s  %14s  %15s  %14s  %17s\n", mode, record.facts.devices,
                      cell(Counter::host_state_read, paper.states_read).c_str(),
                      cell(Counter::host_state_write, paper.states_written).c_str(),
                      cell(Counter::host_parameters, paper.parameters_read).c_str(),
                      cell(Counter::host_gradients_read, paper.gradients_read).c_str(),
                      cell(Counter::host_gradients_write, paper.gradients_written.c_str()).c_str());
        others += formatted("  %-7s %7d  %24.4g  %7.4g  %34.4g  %10.4g  %19.4g  %10.4g\n", mode,
                            record.facts.devices, bytes(Counter::internal_read),
                            bytes(Counter::internal_write), bytes(Counter::node_gradients),
                            bytes(Counter::node_parameters), bytes(Counter::network_gradients),
                            bytes(Counter::network_parameters));
    }
    return out + others + shared_links_table(records) + formula_table(records);
}

}  // namespace nearstep::train
