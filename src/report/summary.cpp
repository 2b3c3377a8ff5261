// The summary of a run and the line of a step as JSON. Used by the trainer, the reporter and
// comparisons.
#include "report/summary.hpp"

#include "base/digest.hpp"
#include "base/version.hpp"
#include "model/gpu_peak.hpp"
#include "report/traffic_report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <numeric>

namespace nearstep::report {

namespace {

using nlohmann::json;

json or_null(const std::string& word) { return word.empty() ? json() : json(word); }

json seconds_json(const PhaseSeconds& seconds) {
    return {{"forward", seconds.forward},
            {"backward", seconds.backward},
            {"update", seconds.update},
            {"hidden", seconds.hidden}};
}

double operations_per_token(const RunRecord& record) {
    return model::operations_per_token(record.run.model, record.parameters);
}

json codec_json(const RunRecord& record) {
    const config::CompressSettings& compress = record.run.compress;
    return {{"codec", config::name_of(compress.codec)},
            {"where", record.facts.encodes_on_gpu ? "gpu" : "host"},
            {"rounding", config::name_of(compress.rounding)},
            {"error_feedback", compress.error_feedback},
            {"warmup_steps", compress.warmup_steps},
            {"kept_share_of_elements", kept_share(record.run)},
            {"payload_bytes_per_parameter", record.facts.payload_bytes_per_parameter},
            {"volume_share_of_dense", share_of_dense(record)}};
}

json endurance_json(const Endurance& endurance) {
    return {{"written_bytes", endurance.written_bytes},
            {"written_bytes_per_step", endurance.written_bytes_per_step},
            {"rated_tbw", endurance.rated_tbw},
            {"days_to_rated_tbw",
             endurance.days_to_rated_tbw ? json(*endurance.days_to_rated_tbw) : json()}};
}

json gpu_json(const GpuUse& gpu) {
    const model::GpuPlan& plan = gpu.plan;
    const json peak_tflops = gpu.peak_operations ? json(*gpu.peak_operations / 1e12) : json();
    return {{"name", gpu.name},
            {"ranks_per_gpu", gpu.ranks_per_gpu},
            {"peak_tflops", peak_tflops},
            {"most_bytes", gpu.most_bytes},
            {"most_tensor_bytes", gpu.most_tensor_bytes},
            {"step_bytes",
             {{"parameters", gpu.parameter_step_bytes}, {"inputs", gpu.input_step_bytes}}},
            {"plan",
             {{"total_bytes", plan.total_bytes()},
              {"budget_bytes", plan.budget_bytes},
              {"blocks", plan.blocks},
              {"slots", plan.residence.slots},
              {"kept_blocks", plan.residence.kept_blocks},
              {"kept_bytes", plan.kept_bytes},
              {"inputs_on_host", plan.residence.are_inputs_on_host},
              {"parameter_bytes", plan.parameter_bytes},
              {"input_bytes", plan.input_bytes},
              {"gradient_bytes", plan.gradient_bytes},
              {"workspace_bytes", plan.workspace_bytes},
              {"host_bytes", plan.host_bytes},
              {"step_bytes", plan.link_bytes}}}};
}

json light_json(const RunRecord& record) {
    const SpeedOfLight& light = *record.light;
    const SpeedOfLight::Least least = light.least();
    const bool is_known = least.bound != SpeedOfLight::Bound::none && record.seconds > 0;
    return {{"share", is_known ? json(least.seconds / record.step_seconds()) : json()},
            {"bound", is_known ? json(name_of(least.bound)) : json()},
            {"compute_s", light.compute_seconds()},
            {"storage_s", light.storage_seconds()},
            {"operations_per_s", light.ceilings().operations},
            {"state_bytes_per_s", light.ceilings().state_bytes}};
}

json lanes_json(const LaneShares& lanes) {
    json shares = {{"together", std::accumulate(lanes.begin(), lanes.end(), 0.0)}};
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        shares[trace::name_of(static_cast<trace::Lane>(lane))] = lanes.at(lane);
    }
    return shares;
}

json placement_json(const RunRecord& record) {
    return {
        {"parameters", record.facts.parameter_ranks}, {"gradients", record.facts.gradient_ranks},
        {"optimizer", record.facts.optimizer_ranks},  {"copies", record.facts.copies},
        {"dense_sums", record.facts.has_dense_sums},  {"vector_bytes", record.vector_bytes}};
}

// Adds the parts of a summary that only some runs have.
void add_optional_parts(json& summary, const RunRecord& record) {
    if (record.gpu) {
        summary["gpu"] = gpu_json(*record.gpu);
    }
    if (const std::optional<double> share = flop_utilisation(record)) {
        summary["model_flop_utilisation"] = *share;
    }
    if (record.light) {
        summary["speed_of_light"] = light_json(record);
    }
    if (record.lanes) {
        summary["lanes"] = lanes_json(*record.lanes);
    }
    if (record.expected) {
        summary["modelled_s"] = {{"gradients", record.expected->backward},
                                 {"update", record.expected->update},
                                 {"calibration", plan::describe(record.calibration, record.run,
                                                                record.facts.all_nodes())}};
    }
    if (json deltas = deltas_json(record.steps, record.parameters); !deltas.is_null()) {
        summary["deltas"] = std::move(deltas);
    }
    if (const config::LinkSettings& link = record.run.link; link.are_shaped()) {
        summary["links"] = {{"device_read_gb_s", link.device_read_gb_s},
                            {"device_write_gb_s", link.device_write_gb_s},
                            {"host_gb_s", link.host_gb_s},
                            {"host_total_gb_s", link.host_total_gb_s},
                            {"network_gb_s", link.network_gb_s},
                            {"scale", link.scale}};
    }
}

// Returns in how many steps each rank was the slowest by far.
std::vector<std::uint64_t> slow_steps(const RunRecord& record, Slowest StepReport::*slowest) {
    std::vector<std::uint64_t> steps(record.hosts.size());
    for (const StepReport& step : record.steps) {
        const Slowest& one = step.*slowest;
        if (one.times > kSlow && static_cast<std::size_t>(one.rank) < steps.size()) {
            ++steps[static_cast<std::size_t>(one.rank)];
        }
    }
    return steps;
}

json hosts_json(const RunRecord& record) {
    json hosts = json::array();
    std::map<std::string, std::size_t> places;  // in `hosts`, which are in the order of their ranks
    for (const std::string& name : record.hosts) {
        if (places.try_emplace(name, hosts.size()).second) {
            hosts.push_back({{"host", name}, {"ranks", 0}});
        }
        json& ranks = hosts[places[name]]["ranks"];
        ranks = ranks.get<int>() + 1;
    }
    const auto add = [&](const char* key, const std::vector<std::uint64_t>& of_ranks) {
        std::vector<std::uint64_t> sums(hosts.size());
        for (std::size_t rank = 0; rank < std::min(of_ranks.size(), record.hosts.size()); ++rank) {
            sums[places[record.hosts[rank]]] += of_ranks[rank];
        }
        for (std::size_t host = 0; host < sums.size(); ++host) {
            hosts[host][key] = sums[host];
        }
    };
    add("network_sent_bytes", record.network_sent_bytes);
    add("slow_computed", slow_steps(record, &StepReport::computed));
    add("slow_devices", slow_steps(record, &StepReport::devices));
    add("slow_drives", slow_steps(record, &StepReport::drives));
    add("slow_nccl", slow_steps(record, &StepReport::nccl));
    add("slow_sender", slow_steps(record, &StepReport::sender));
    return hosts;
}

}  // namespace

json to_json(const RunRecord& record) {
    const std::vector<StepReport>& steps = record.steps;
    std::vector<double> losses;
    std::ranges::transform(steps, std::back_inserter(losses), &StepReport::loss);
    json phases = seconds_json(mean_seconds(steps));
    phases["commit"] =
        steps.empty() ? 0 : record.commit_seconds / static_cast<double>(steps.size());
    const std::int64_t misses = guesses_in(steps, trace::Guess::wrong);
    const auto heldout = [&](double value) { return record.heldout_loss ? json(value) : json(); };
    const HeldOutLoss loss = record.heldout_loss.value_or(HeldOutLoss{});
    json summary = {
        {"commit", commit()},
        {"config", record.run.name},
        {"site", record.run.site},
        {"mode", config::name_of(record.run.mode)},
        {"ranks", record.ranks},
        {"nodes", record.facts.nodes},
        {"storage_nodes", record.facts.storage_nodes},
        {"devices", record.facts.devices},
        {"parameters", record.parameters},
        {"steps", steps.empty() ? 0 : steps.back().step},
        {"first_step", steps.empty() ? 0 : steps.front().step},
        {"start_s", {{"search", record.start.search}, {"begin", record.start.begin}}},
        {"seconds", record.seconds},
        {"tokens_per_s", record.tokens_per_second()},
        {"losses", losses},
        {"train_loss", losses.empty() ? json() : json(losses.back())},
        {"heldout_loss", heldout(loss.nats_per_token)},
        {"heldout_nats_per_byte", heldout(loss.nats_per_byte)},
        {"heldout_bits_per_byte", heldout(loss.bits_per_byte())},
        {"skipped_steps", std::ranges::count(steps, true, &StepReport::is_skipped)},
        {"clip_guesses", guesses_in(steps, trace::Guess::right) + misses},
        {"clip_misses", misses},
        {"compress", codec_json(record)},
        {"masters_xxh3", record.masters_digest ? json(to_hex(*record.masters_digest)) : json()},
        {"checkpoint", or_null(record.checkpoint)},
        {"endurance", endurance_json(record.endurance)},
        {"network_sent_bytes", record.network_sent_bytes},
        {"hosts", hosts_json(record)},
        {"phases_s", phases},
        {"model_operations_per_token", operations_per_token(record)},
        {"bytes_per_parameter", links_json(steps, record.parameters)},
        {"shared_links", shared_links_json(record)},
        {"formula_bytes_per_parameter", formula_json(record)},
        {"placement", placement_json(record)},
        {"transport", or_null(record.facts.transport)},
        {"payload_transport", or_null(record.facts.payload_transport)},
        {"parameter_transport", or_null(record.facts.parameter_transport)}};
    add_optional_parts(summary, record);
    return summary;
}

json to_json(const StepReport& report, std::size_t parameters) {
    json line = {{"step", report.step},
                 {"loss", report.loss},
                 {"gradient_norm", report.gradient_norm},
                 {"learning_rate", report.learning_rate},
                 {"loss_scale", report.loss_scale},
                 {"skipped", report.is_skipped},
                 {"phases_s", seconds_json(report.seconds)},
                 {"slowest_rank", report.computed.rank},
                 {"slowest_times", report.computed.times},
                 {"slowest_devices_rank", report.devices.rank},
                 {"slowest_devices_times", report.devices.times},
                 {"slowest_drives_rank", report.drives.rank},
                 {"slowest_drives_times", report.drives.times},
                 {"slowest_nccl_rank", report.nccl.rank},
                 {"slowest_nccl_times", report.nccl.times},
                 {"nccl_s", report.nccl_s},
                 {"slowest_sender_rank", report.sender.rank},
                 {"slowest_sender_times", report.sender.times},
                 {"slowest_receiver_rank", report.receiver.rank},
                 {"slowest_receiver_times", report.receiver.times},
                 {"network_s", report.network_s},
                 {"bytes_per_parameter", links_json({report}, parameters)}};
    if (json deltas = deltas_json({report}, parameters); !deltas.is_null()) {
        line["deltas"] = std::move(deltas);
    }
    return line;
}

std::string text_of(const nlohmann::json& result, int indent) {
    return result.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

PhaseSeconds mean_seconds(const std::vector<StepReport>& steps) {
    PhaseSeconds mean;
    const auto count = static_cast<double>(std::max<std::size_t>(steps.size(), 1));
    for (const StepReport& step : steps) {
        for (const auto phase : {&PhaseSeconds::forward, &PhaseSeconds::backward,
                                 &PhaseSeconds::update, &PhaseSeconds::hidden}) {
            mean.*phase += step.seconds.*phase / count;
        }
    }
    return mean;
}

std::int64_t guesses_in(const std::vector<StepReport>& steps, trace::Guess which) {
    return std::ranges::count(steps, which, &StepReport::guess);
}

double kept_share(const config::RunSettings& run) {
    return run.compress.codec == config::PayloadCodec::topk ? run.compress.keep : 1.0;
}

double share_of_dense(const RunRecord& record) {
    return record.facts.payload_bytes_per_parameter /
           static_cast<double>(size_bytes(record.run.model.dtype));
}

std::optional<double> flop_utilisation(const RunRecord& record) {
    if (!record.gpu || !record.gpu->peak_operations) {
        return std::nullopt;
    }
    const double gpus = static_cast<double>(config::computing_ranks(record.run, record.ranks)) /
                        record.gpu->ranks_per_gpu;
    return record.tokens_per_second() * operations_per_token(record) /
           (*record.gpu->peak_operations * gpus);
}

}  // namespace nearstep::report
