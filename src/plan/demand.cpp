// Memory that a choice needs. Used by cost.cpp.
#include "plan/demand.hpp"

#include "plan/tier_times.hpp"

#include <algorithm>

namespace nearstep::plan {

std::array<Fit, 4> fits_of(const Demand& demand, const Site& site) {
    return {{{"GPU memory", demand.gpu, site.gpu_memory},
             {"host memory", demand.host, site.host_memory},
             {"device memory", demand.device, site.device_memory},
             {"drive", demand.drive, site.device_capacity}}};
}

bool does_fit(const Demand& demand, const Site& site) {
    return demand.gpu <= site.gpu_memory && demand.host <= site.host_memory &&
           demand.device <= site.device_memory && demand.drive <= site.device_capacity;
}

double gpu_bytes(const Problem& problem, const Choice& choice) {
    const Workload& work = problem.work;
    const auto block = static_cast<double>(work.model.largest_block);
    const auto parameters = static_cast<double>(work.model.parameters);
    const double rows = rows_of_rank(problem);
    const double micro_rows = std::min(rows, work.micro_sequences);
    const bool is_by_block = choice.order == Order::by_block;
    const bool is_whole = choice.home == Home::gpu && choice.parameters.size() == 1;
    // From storage, inputs wait elsewhere but for those of two blocks.
    const double kept = choice.home == Home::storage ? 2.0 / work.model.blocks : 1;
    const double waiting = is_by_block ? rows : micro_rows;
    double bytes = choice.kept == Kept::all
                       ? waiting * work.kept_bytes
                       : micro_rows * work.working_bytes + waiting * work.checkpoint_bytes * kept;
    // Buffers for two blocks of sharded or streamed parameters and two of fp32 gradients.
    bytes += (is_whole ? 0 : 2 * work.element_bytes * block) + 2 * 4 * block;
    if (choice.home == Home::gpu) {
        bytes += work.element_bytes * parameters / choice.parameters.size();
    }
    if (choice.again == Again::in_node) {
        bytes += work.element_bytes * parameters / problem.site.gpus;
    }
    const bool is_resident = choice.state == StateHome::gpu;
    if (!is_by_block || is_resident) {
        bytes += work.element_bytes * parameters / choice.gradients.size();
    }
    if (is_resident) {
        bytes += work.state_bytes * parameters / choice.optimizer.size();
    }
    return bytes;
}

Demand demand_of(const Problem& problem, const Choice& choice, const Numbers& n) {
    const Site& site = problem.site;
    const Workload& work = problem.work;
    const auto block = static_cast<double>(work.model.largest_block);
    const double owned = n.parameters * n.owned;
    const double encoded = choice.scatter == Scatter::flat ? n.lists / n.nodes : 1;  // of a node
    const double staged = choice.slots * n.subgroup_tiles * static_cast<double>(shard::kTileElems);
    Demand demand;
    demand.gpu = gpu_bytes(problem, choice);
    if (choice.state == StateHome::gpu) {
        return demand;
    }
    const config::TierBytes state = tier_bytes(problem, choice);
    demand.gpu += state.gpu;
    // Payloads of two blocks in flight, and staging for new parameters.
    const double received = n.lists * n.payload * 2 * block * n.owned;
    const double sent = n.payload * 2 * block * encoded;
    demand.host = received + sent + problem.most_csds() * staged * n.new_bytes +
                  state.memory * problem.holders_of_node();
    if (choice.home == Home::host) {
        demand.host +=
            n.element * n.parameters * (n.gpus / choice.parameters.gpus) / choice.parameters.nodes;
    }
    if (choice.home == Home::storage) {  // two blocks in a window
        demand.host += 2 * n.element * block + n.inputs_on_host;
    }
    if (choice.landing == Landing::host) {
        demand.host += n.handed * owned;
    }
    if (work.has_error_feedback) {  // two fp32 residuals of what a node encodes
        demand.host += 8 * n.parameters * n.lists / n.nodes;
    }
    demand.device = staged * (work.state_bytes + n.handed + n.new_bytes);
    demand.drive = 2 * work.state_bytes * n.share() + n.inputs_on_drives / site.csds;
    if (choice.landing == Landing::device) {
        demand.device += n.handed * n.share();
    }
    if (choice.landing == Landing::flash) {
        demand.drive += n.handed * n.share();
    }
    return demand;
}

}  // namespace nearstep::plan
