// Memory that a choice needs. Used by cost.cpp.
#include "plan/demand.hpp"

#include "plan/kept_state.hpp"
#include "plan/tier_times.hpp"

#include <algorithm>

namespace nearstep::plan {

std::vector<Fit> fits_of(const Demand& demand, const Site& site) {
    std::vector<Fit> fits = {{"GPU memory", demand.gpu, site.gpu_memory},
                             {"host memory", demand.host, site.host_memory},
                             {"device memory", demand.device, site.device_memory},
                             {"drive", demand.drive, site.device_capacity}};
    if (demand.log_room > 0) {
        fits.push_back({"room for logs (csd.log_gb)", demand.logs, demand.log_room});
    }
    return fits;
}

bool does_fit(const Demand& demand, const Site& site) {
    return demand.gpu <= site.gpu_memory && demand.host <= site.host_memory &&
           demand.device <= site.device_memory && demand.drive <= site.device_capacity &&
           (demand.log_room <= 0 || demand.logs <= demand.log_room);
}

namespace {

constexpr double kSumBytes = 4;  // of a gradient's sum over micro-batches
// The part of a pass's gradients that waits for the host's threads to add it.
constexpr double kWaitingShare = 0.5;

// GPU memory of one micro-batch's block, and of the inputs of all blocks that wait there.
double bytes_of_inputs(const Problem& problem, const Choice& choice) {
    const Workload& work = problem.work;
    // From storage, inputs wait elsewhere but for those of two blocks, and those that wait on the
    // host but for four.
    const double there = choice.home == Home::storage    ? 2.0 / work.model.blocks
                         : choice.inputs == Inputs::host ? std::min(1.0, 4.0 / work.model.blocks)
                                                         : 1;
    const double micro_rows = std::min(rows_of_rank(problem), work.micro_sequences);
    return micro_rows * work.working_bytes +
           waiting_rows(problem, choice) * work.checkpoint_bytes * there;
}

// GPU memory of what all layers keep, beside their inputs.
double bytes_of_layers(const Problem& problem, const Choice& choice) {
    return waiting_rows(problem, choice) * (problem.work.kept_bytes - problem.work.logits_bytes);
}

double sum_bytes(const Problem& problem, const Choice& choice) {
    const bool has_sums = choice.order == Order::by_micro_batch && micro_batches(problem) > 1;
    return has_sums ? kSumBytes * problem.work.trained *
                          static_cast<double>(problem.work.model.parameters)
                    : 0;
}

}  // namespace

double sum_bytes_on_gpu(const Problem& problem, const Choice& choice) {
    return choice.sums == Sums::gpu ? sum_bytes(problem, choice) / choice.gradients.size() : 0;
}

double share_of_sums_on_host(const Problem& problem, const Choice& choice) {
    if (choice.sums == Sums::gpu || choice.home != Home::gpu) {
        return choice.sums == Sums::gpu ? 0 : 1;
    }
    const double room =
        problem.site.gpu_memory - gpu_bytes(problem, choice) - tier_bytes(problem, choice).gpu;
    return 1 - std::clamp(room / sum_bytes(problem, choice), 0.0, 1.0);
}

double gpu_bytes(const Problem& problem, const Choice& choice) {
    const Workload& work = problem.work;
    const auto block = static_cast<double>(work.model.largest_block);
    const auto parameters = static_cast<double>(work.model.parameters);
    const bool is_by_block = choice.order == Order::by_block;
    const bool is_resident = choice.state == StateHome::gpu;
    const bool is_whole = choice.home == Home::gpu && choice.parameters.size() == 1;
    double bytes = bytes_of_inputs(problem, choice);
    if (choice.kept == Kept::all) {
        // By block, micro-batches compute their logits one after another.
        bytes = is_by_block && !is_resident ? bytes + bytes_of_layers(problem, choice)
                                            : waiting_rows(problem, choice) * work.kept_bytes;
    }
    // Buffers for two blocks of sharded or streamed parameters and two of fp32 gradients.
    bytes += (is_whole ? 0 : 2 * work.element_bytes * block) + 2 * 4 * block;
    if (choice.home == Home::gpu) {
        bytes += work.element_bytes * parameters / choice.parameters.size();
    }
    if (choice.again == Again::in_node) {
        bytes += work.element_bytes * parameters / problem.site.gpus;
    }
    if (is_resident) {
        bytes += work.element_bytes * parameters / choice.gradients.size() +
                 work.state_bytes * parameters / choice.optimizer.size();
    }
    return is_resident ? bytes : bytes + sum_bytes_on_gpu(problem, choice);
}

double share_that_keeps(const Problem& problem, const Choice& choice) {
    if (choice.kept != Kept::most) {
        return choice.kept == Kept::all ? 1 : 0;
    }
    const double room =
        problem.site.gpu_memory - gpu_bytes(problem, choice) - tier_bytes(problem, choice).gpu;
    return std::clamp(room / bytes_of_layers(problem, choice), 0.0, 1.0);
}

Demand demand_of(const Problem& problem, const Choice& choice, const Numbers& n) {
    const Site& site = problem.site;
    const Workload& work = problem.work;
    const auto block = static_cast<double>(work.model.largest_block);
    const double encoded = choice.scatter == Scatter::flat ? n.lists / n.nodes : 1;  // of a node
    const double staged = work.slots * n.subgroup_tiles * static_cast<double>(shard::kTileElems);
    Demand demand;
    demand.gpu = gpu_bytes(problem, choice);
    if (choice.state == StateHome::gpu) {
        return demand;
    }
    const config::TierBytes state = tier_bytes(problem, choice);
    const KeptState kept = kept_state(problem, choice, n);
    demand.gpu += state.gpu;
    if (choice.kept == Kept::most) {
        demand.gpu += share_that_keeps(problem, choice) * bytes_of_layers(problem, choice);
    }
    // Payloads of two blocks in flight, and staging for new parameters.
    const double received = n.lists * n.payload * 2 * block * n.owned;
    const double sent = n.payload * 2 * block * encoded;
    demand.host = received + sent + problem.most_csds() * staged * n.new_bytes +
                  (work.is_in_memory ? kept.memory : state.memory * problem.holders_of_node());
    if (choice.home == Home::host) {
        demand.host +=
            n.element * n.parameters * (n.gpus / choice.parameters.gpus) / choice.parameters.nodes;
    }
    if (choice.home == Home::gpu) {  // the vector that the engine updates
        demand.host += work.trained * n.element * n.parameters / choice.parameters.nodes;
    }
    const double sums = sum_bytes(problem, choice);
    const double on_host = share_of_sums_on_host(problem, choice);
    demand.gpu += choice.sums == Sums::host ? sums * (1 - on_host) : 0;
    demand.host += n.gpus * sums * on_host * (1 + kWaitingShare * n.element / kSumBytes);
    if (choice.inputs == Inputs::host) {
        demand.host += n.gpus * (1 - share_that_keeps(problem, choice)) *
                       waiting_rows(problem, choice) * work.checkpoint_bytes;
    }
    if (choice.home == Home::storage) {  // two blocks in a window
        demand.host += 2 * n.element * block + n.inputs_on_host;
    }
    if (work.has_error_feedback) {  // two fp32 residuals of what a node encodes
        demand.host += 8 * n.parameters * n.lists / n.nodes;
    }
    demand.device = staged * (work.state_bytes + n.handover + n.new_bytes);
    demand.drive = kept.drive + n.inputs_on_drives / site.csds;
    demand.logs = static_cast<double>(csd::kLeastLogs * kept.logged.log_bytes);
    demand.log_room = kept.log_room;
    demand.device += n.handover * n.share();
    return demand;
}

}  // namespace nearstep::plan
