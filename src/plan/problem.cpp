// Builds a plan's input from model and site. Used by the planner and by predictions.
#include "plan/problem.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace nearstep::plan {

namespace {

// The value times its unit. Throws ConfigError if it is not above zero.
double needed(const std::string& key, double value, double unit) {
    if (value <= 0) {
        throw ConfigError(text(key, " = 0 leaves nothing to plan with: set ", key,
                               " in the site file, or with --set ", key, "=NUMBER."));
    }
    return value * unit;
}

// Sets the devices of a node with as many ranks, and of a storage node.
void set_csds(const config::RunSettings& run, int ranks, Site& site) {
    const std::vector<int>& per_rank = run.csd.per_rank;
    const auto storage = static_cast<std::ptrdiff_t>(run.csd.storage_ranks);
    const std::ptrdiff_t computing = std::ssize(per_rank) - storage;
    const auto all_of = [](auto begin, auto end) { return std::accumulate(begin, end, 0); };
    if (per_rank.size() == 1) {
        site.csds = std::max(per_rank.front() * (storage > 0 ? 1 : ranks), 1);
    } else if (storage == 0 || computing <= 0) {
        site.csds = std::max(all_of(per_rank.begin(), per_rank.end()), 1);
    } else {
        const auto middle = per_rank.begin() + computing;
        site.csds = std::max(all_of(middle, per_rank.end()) / run.csd.storage_ranks, 1);
        const auto drives = static_cast<double>(all_of(per_rank.begin(), middle));
        site.csds_beside =
            static_cast<int>(std::ceil(drives * ranks / static_cast<double>(computing)));
    }
    if (run.hosts.devices > 0) {
        site.csds = run.hosts.devices;
    }
}

}  // namespace

double state_bytes_of(arith::StateFormat state) {
    // docs/formats/state-file.md; 8-bit moments have an fp32 scale for every 256 elements.
    constexpr std::array<double, kWords<arith::StateFormat>.size()> kBytes = {12, 8, 6.03125,
                                                                              4.03125};
    return kBytes.at(index_of(state));
}

Workload workload_of(const config::RunSettings& run, const ModelSize& model, double sequences) {
    const config::ModelSettings& shape = run.model;
    const double layers = shape.layers;
    const double width = shape.width;
    const double context = shape.context;
    Workload work;
    work.model = model;
    work.element_bytes = shape.dtype == Dtype::fp32 ? 4 : 2;
    work.state = run.csd.state;
    work.state_bytes = state_bytes_of(run.csd.state);
    work.master_bytes = run.csd.state == arith::StateFormat::compact ? 2 : 4;
    // One multiply-add per parameter and token, and two for attention over the whole context.
    const auto multiplied = static_cast<double>(model.parameters - shape.looked_up());
    work.operations_per_sequence = context * (2 * multiplied + 4 * layers * context * width);
    work.checkpoint_bytes = context * width * work.element_bytes * (layers + 1);
    // Korthikanti et al. 2022, equation 1, for one layer without dropout's masks, plus the logits.
    // A gated hidden layer has four hidden vectors, gelu's has two.
    const double hidden = (shape.is_llama() ? 8 : 4) * shape.hidden_width();
    work.logits_bytes = context * shape.vocabulary * (4 + work.element_bytes);
    work.working_bytes =
        context * (16 * width + hidden + 4 * shape.heads * context) + work.logits_bytes;
    // The network's fused products keep no attention scores, and for llama two hidden vectors
    // instead of four.
    work.kept_bytes =
        layers * context * (16 * width + 4.0 * shape.hidden_width()) + work.logits_bytes;
    work.tokens_per_sequence = context;
    work.sequences = sequences;
    work.micro_sequences = run.train.micro_batch;
    work.keep = run.compress.keep;
    work.is_serial = run.mode == config::Mode::su;
    work.slots = run.csd.least_slots();
    work.has_error_feedback = run.compress.error_feedback;
    return work;
}

Site site_of(const config::RunSettings& run, int nodes, StatePlaces tiers) {
    const config::PlanSettings& plan = run.plan;
    const config::LinkSettings& link = run.link;
    const double rate = kGiga * link.factor();
    const bool has_devices = tiers == StatePlaces::devices || link.device_read_gb_s > 0;
    const auto of_devices = [&](const char* key, double value, double unit) {
        return has_devices ? needed(key, value, unit) : 0;
    };
    Site site;
    site.gpus = std::max(run.hosts.ranks, 1);
    site.csds = 0;
    if (has_devices) {
        set_csds(run, site.gpus, site);
    }
    site.gpu_peak = needed("plan.gpu_tflops", plan.gpu_tflops, 1e12);
    site.gpu_operations = site.gpu_peak * plan.gpu_efficiency;
    site.gpu_memory = needed("plan.gpu_memory_gb", plan.gpu_memory_gb, kGiga);
    if (run.model.gpu_memory_gb > 0) {
        site.gpu_memory = std::min(site.gpu_memory, run.model.gpu_memory_gb * kGiga);
    }
    site.gpu_memory_rate = plan.gpu_memory_gb_s * kGiga;
    site.gpu_link = of_devices("plan.gpu_link_gb_s", plan.gpu_link_gb_s, kGiga);
    site.gpu_to_gpu =
        (plan.gpu_to_gpu_gb_s > 0 ? plan.gpu_to_gpu_gb_s : plan.gpu_link_gb_s) * kGiga;
    site.host_memory = of_devices("plan.host_memory_gb", plan.host_memory_gb, kGiga);
    site.host_memory_rate = plan.host_memory_gb_s * kGiga;
    site.host_link = of_devices("link.host_gb_s", link.host_gb_s, rate);
    site.host_link_total = link.host_total_gb_s * rate;
    site.device_read = of_devices("link.device_read_gb_s", link.device_read_gb_s, rate);
    site.device_write = of_devices("link.device_write_gb_s", link.device_write_gb_s, rate);
    site.device_link = plan.device_link_gb_s * kGiga;
    site.device_memory = of_devices("plan.device_memory_gb", plan.device_memory_gb, kGiga);
    site.device_memory_rate = plan.device_memory_gb_s * kGiga;
    site.device_updates = run.csd.update_mparam_s * 1e6 * link.factor();
    site.device_capacity = of_devices("plan.device_capacity_gb", plan.device_capacity_gb, kGiga);
    site.device_rating = run.csd.rated_tbw * 1e12;
    site.network =
        nodes > 1 ? needed("link.network_gb_s", link.network_gb_s, rate) : link.network_gb_s * rate;
    site.latency_s = plan.network_latency_us * 1e-6;
    site.bulk_loss = plan.bulk_loss;
    site.layer_loss = plan.layer_loss;
    site.delta_bytes = plan.delta_bytes;
    site.node_price = plan.node_price;
    site.storage_node_price =
        plan.storage_node_price > 0 ? plan.storage_node_price : plan.node_price;
    site.gpu_price = plan.gpu_price;
    site.csd_price = plan.csd_price;
    return site;
}

}  // namespace nearstep::plan
