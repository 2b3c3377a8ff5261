// Writes a choice as settings of the client that trains it. Used by plan_report.cpp.
#include "plan/plan_settings.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "plan/numbers.hpp"
#include "plan/tier_times.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <optional>

namespace nearstep::plan {

namespace {

// Ranks whose dense gradients are summed before they are encoded.
int ranks_of_sum(const Choice& choice, const Problem& problem) {
    return choice.scatter == Scatter::hierarchical
               ? std::max(choice.gradients.size(), problem.site.gpus)
               : choice.gradients.size();
}

// Returns the value of model.activations for what backward finds. The network keeps as many layers
// as really fit, which may be fewer than the formulas say.
std::string_view activations_of(const Choice& choice) {
    return choice.kept != Kept::inputs ? "auto" : name_of(choice.inputs);
}

std::string_view densify_of(const Choice& choice) {
    return choice.handover == Handover::dense ? "always" : "never";
}

double whole_gb(double bytes) { return std::floor(bytes / kGiga); }

nlohmann::ordered_json config_of(const Choice& choice, const Problem& problem) {
    nlohmann::ordered_json config = {{"gather.codec", name_of(choice.gather)},
                                     {"csd.subgroup_tiles", choice.subgroup_tiles},
                                     {"placement.gradients", ranks_of_sum(choice, problem)},
                                     {"placement.optimizer", choice.optimizer.size()},
                                     {"exchange.densify", densify_of(choice)}};
    const config::TierBytes bytes = tier_bytes(problem, choice);
    if (bytes.gpu > 0) {
        config["csd.tiers.gpu"] = bytes.gpu / kGiga;
    }
    if (bytes.memory > 0 && !problem.work.is_in_memory) {
        config["csd.tiers.memory"] = bytes.memory / kGiga;
    }
    return config;
}

std::string stream_of(const Choice& choice, const Problem& problem) {
    const bool is_from_storage = choice.home == Home::storage;
    const bool says_inputs = choice.kept == Kept::inputs && !is_from_storage;
    return text(
        "nearstep.Stream(gpu_memory_gb=", whole_gb(problem.site.gpu_memory),
        is_from_storage ? text(", host_memory_gb=", whole_gb(problem.site.host_memory))
                        : std::string(),
        says_inputs ? text(", activations=\"", name_of(choice.inputs), "\"") : std::string(), ")");
}

}  // namespace

std::vector<std::string> settings_of(const Choice& choice, const Problem& problem) {
    const Workload& work = problem.work;
    std::vector<std::string> settings = {
        text("mode=", choice.codec != Codec::dense ? "su+o+c"
                      : work.is_serial             ? "su"
                                                   : "su+o"),
        text("train.global_batch=", static_cast<long long>(work.sequences)),
        text("train.micro_batch=", static_cast<long long>(work.micro_sequences)),
        text("model.activations=", activations_of(choice)),
        text("csd.state=", nearstep::name_of(work.state)),
        text("compress.codec=", name_of(choice.codec)),
        text("placement.parameters=", choice.parameters.size())};
    const nlohmann::ordered_json config = config_of(choice, problem);
    for (const auto& [key, value] : config.items()) {
        settings.push_back(
            text(key, "=", value.is_string() ? value.get<std::string>() : value.dump()));
    }
    return settings;
}

std::string python_of(const Choice& choice, const Problem& problem) {
    const bool is_sharded = choice.parameters.size() > 1;
    std::string out = text("nearstep.AdamW(nearstep.groups(model), state=\"",
                           nearstep::name_of(problem.work.state), "\"");
    if (!is_sharded) {
        const bool has_passes = choice.order == Order::by_micro_batch;
        out += text(", codec=\"", name_of(choice.codec),
                    "\", accumulation=", has_passes ? micro_batches(problem) : 1);
    }
    if (choice.home != Home::gpu) {
        out += text(", stream=", stream_of(choice, problem));
    }
    nlohmann::ordered_json config = config_of(choice, problem);
    if (is_sharded) {  // PyTorch exchanges gradients and parameters
        for (const char* key :
             {"gather.codec", "placement.gradients", "placement.optimizer", "exchange.densify"}) {
            config.erase(key);
        }
    }
    return text(out, ", config=", config.dump(), ")");
}

std::string describe_settings(const Choice& choice, const Problem& problem) {
    const std::optional<Client> client = client_of(problem, choice);
    if (client && *client != Client::program) {
        const bool recomputes = choice.home == Home::gpu && choice.kept == Kept::inputs;
        const double rows =
            choice.order == Order::by_block ? rows_of_rank(problem) : problem.work.micro_sequences;
        return text(python_of(choice, problem), ", on ", counted(problem.ranks(), "rank"),
                    " with rows of a backward pass = ", rows,
                    client == Client::fsdp2 ? text(", after fully_shard() over every ",
                                                   choice.parameters.size(), " ranks")
                                            : std::string(),
                    recomputes ? ", with model.gradient_checkpointing_enable()" : "");
    }
    std::string out;
    if (client) {
        for (const std::string& setting : settings_of(choice, problem)) {
            out += text(out.empty() ? "" : " ", "--set ", setting);
        }
    }
    return out;
}

}  // namespace nearstep::plan
