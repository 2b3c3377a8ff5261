// Times a step of a choice by the planner's formulas. Used by the search and by predictions.
#include "plan/cost.hpp"

#include "plan/formulas.hpp"
#include "plan/kept_state.hpp"
#include "plan/resident.hpp"
#include "plan/tier_times.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace nearstep::plan {

namespace {

double largest(std::initializer_list<double> values) { return std::max(values); }

// Bytes that a node sends when it gathers or reduces a vector once over the nodes of a mesh.
double network_bytes(const Numbers& n, const Mesh& mesh) {
    return n.element * n.parameters * (1 - 1.0 / mesh.nodes);
}

double network_seconds(const Site& site, const Numbers& n, const Mesh& mesh) {
    return layer_seconds(site, network_bytes(n, mesh) * n.crowding(mesh.nodes), mesh.nodes);
}

// A GPU's part of one pass of all parameters over its link to the host.
double from_host_seconds(const Problem& problem, const Choice& choice, const Numbers& n) {
    return choice.home == Home::host
               ? n.element * n.parameters / choice.parameters.gpus / problem.site.gpu_link
               : 0;
}

// One pass of all parameters to the GPUs.
double load_seconds(const Problem& problem, const Choice& choice, const Numbers& n) {
    const Site& site = problem.site;
    const Mesh& mesh = choice.parameters;
    const double bytes = n.element * n.parameters;
    return largest({from_host_seconds(problem, choice, n),
                    seconds(bytes * (1 - 1.0 / mesh.gpus), site.gpu_to_gpu),
                    network_seconds(site, n, mesh)});
}

// Rate of all drives of a node together, to or from the host.
double drives_rate(const Site& site, double of_drive) {
    return std::min(site.csds * of_drive, site.host_link);
}

// Bytes of the masters that one pass reads from drives.
double masters_on_drives(const Workload& work, const Numbers& n) {
    return work.is_in_memory ? 0 : work.master_bytes * n.parameters;
}

// One pass over all masters, on drives or in memory.
double seconds_of_masters(const Site& site, const Workload& work, const Numbers& n) {
    return work.is_in_memory ? seconds(work.master_bytes * n.parameters, site.host_memory_rate)
                             : masters_on_drives(work, n) / drives_rate(site, site.device_read);
}

// One pass of all parameters from storage, while inputs of blocks leave for host and drives.
double forward_from_storage(const Site& site, const Workload& work, const Numbers& n) {
    const double inputs = n.inputs_on_host + n.inputs_on_drives;
    return largest({std::max(n.element * n.parameters, inputs) / site.gpu_link,
                    seconds_of_masters(site, work, n),
                    n.inputs_on_drives / drives_rate(site, site.device_write)});
}

// One pass of all parameters from storage, while inputs of blocks come back.
double backward_from_storage(const Site& site, const Workload& work, const Numbers& n) {
    const double inputs = n.inputs_on_host + n.inputs_on_drives;
    return std::max((n.element * n.parameters + inputs) / site.gpu_link,
                    seconds_of_masters(site, work, n) +
                        n.inputs_on_drives / drives_rate(site, site.device_read));
}

// Inputs of a rank's layers that wait on the host in a step.
double inputs_to_host(const Problem& problem, const Choice& choice) {
    return choice.inputs == Inputs::host ? rows_of_rank(problem) * problem.work.checkpoint_bytes *
                                               (1 - share_that_keeps(problem, choice))
                                         : 0;
}

// Sums of gradients on the host: all passes but the last one send theirs, threads read a sum and a
// gradient and write the sum, and the GPU that encodes reads the sums.
double seconds_of_host_sums(const Problem& problem, const Choice& choice, const Numbers& n) {
    if (choice.sums == Sums::gpu) {
        return 0;
    }
    const Site& site = problem.site;
    constexpr double kSum = 4;
    const double sums =
        share_of_sums_on_host(problem, choice) * problem.work.trained * n.parameters;
    return std::max(
        sums * std::max((n.rounds - 1) * n.element, kSum) / site.gpu_link,
        seconds(n.gpus * sums * (n.rounds - 1) * (2 * kSum + n.element), site.host_memory_rate));
}

// The terms that do not depend on where the optimizer state is.
void set_gpu_terms(const Problem& problem, const Choice& choice, const Numbers& n, Terms& t) {
    const Site& site = problem.site;
    const Workload& work = problem.work;
    const double products =
        rows_of_rank(problem) * work.operations_per_sequence / site.gpu_operations;
    const double moves =
        rows_of_rank(problem) * seconds(work.moved_bytes_per_sequence, site.gpu_memory_rate);
    t.fwd_gpu = products + moves;
    const bool is_from_storage = choice.home == Home::storage;
    t.fwd_load = n.rounds * (is_from_storage ? forward_from_storage(site, problem.work, n)
                                             : load_seconds(problem, choice, n));
    // Inputs leave while parameters come, and come back beside these.
    const double inputs = inputs_to_host(problem, choice) / site.gpu_link;
    const double loads = t.fwd_load;
    t.fwd_load = std::max(loads, inputs);
    t.fwd = std::max(t.fwd_gpu, t.fwd_load);
    // Backward passes to the inputs and to the trained weights, and computes forward again.
    const double again = 1 - share_that_keeps(problem, choice);
    t.bwd_gpu = (1 + work.trained + again) * products + (2 + again) * moves;
    t.bwd_load = is_from_storage
                     ? n.rounds * backward_from_storage(site, problem.work, n)
                     : std::max(loads, inputs + n.rounds * from_host_seconds(problem, choice, n));
    const bool is_flat = choice.scatter == Scatter::flat;
    const double slices = choice.gradients.gpus;
    // The part of the gradient that a GPU encodes.
    const double part = 1 / (is_flat ? slices : n.gpus * choice.gradients.nodes);
    const double in_node = n.rounds * (1 - 1 / slices) + (is_flat ? 0 : 1 / slices - 1 / n.gpus);
    t.reduce = largest({seconds(n.element * n.parameters * in_node, site.gpu_to_gpu),
                        n.rounds * network_seconds(site, n, choice.gradients),
                        seconds_of_host_sums(problem, choice, n)});
    // Top-k reads every element three times: for the threshold, for ties, and to emit.
    const double looks = choice.codec == Codec::topk ? 3 : 1;
    t.encode =
        seconds((4 * looks * work.trained + n.payload) * n.parameters * part, site.gpu_memory_rate);
    t.out = n.payload * n.parameters * part / site.gpu_link;
    t.norm = 2 * site.latency_s * std::ceil(std::log2(problem.ranks()));
}

// A part of what a node that computes has to send: payloads of all parameters, for each copy of the
// state.
double payloads_of_node(double part, const Numbers& n) {
    return part * n.lists / n.nodes * n.payload * n.parameters * n.net_copies;
}

// The part that it sends to other nodes that compute.
double part_to_gpus(const Choice& choice, const Numbers& n) {
    return n.beside * (1 - choice.gradients.nodes / n.nodes);
}

// Payload bytes that a node sends. Payloads for storage nodes always leave the node.
double scatter_bytes(const Choice& choice, const Numbers& n) {
    return payloads_of_node(part_to_gpus(choice, n) + 1 - n.beside, n);
}

double scatter_seconds(const Problem& problem, const Choice& choice, const Numbers& n) {
    const double peers = n.storage + (n.beside > 0 && n.nodes > 1 ? n.lists - 1 : 0);
    // A storage node gets what several nodes send, and so does each node on which a block lies.
    const double to_gpus = part_to_gpus(choice, n) * n.crowding(n.nodes / n.net_copies);
    const double to_storage =
        n.storage > 0 ? (1 - n.beside) * n.nodes / n.storage * n.crowding(n.storage) : 0;
    const double most =
        std::max(scatter_bytes(choice, n), payloads_of_node(std::max(to_gpus, to_storage), n));
    return bulk_seconds(problem.site, most, std::max(n.nodes, n.storage) / choice.gradients.nodes) +
           problem.site.latency_s * peers * problem.work.model.blocks;
}

// All rounds but the last, plus the last, which alone encodes.
double backward_seconds(const Problem& problem, const Choice& choice, const Numbers& n,
                        const Terms& t) {
    const double network = n.rounds * (network_seconds(problem.site, n, choice.gradients) +
                                       network_seconds(problem.site, n, choice.parameters));
    const double round = largest({t.bwd_gpu, t.bwd_load, t.reduce, network}) / n.rounds;
    const double last =
        largest({round, t.encode, t.out, network / n.rounds + t.scat, t.sum, t.down});
    return (n.rounds - 1) * round + last;
}

// Rate of all devices of a node together, each way.
double devices_link(const Site& site) {
    return site.device_link > 0 ? std::min(site.csds * site.device_link, site.host_link)
                                : site.host_link;
}

void set_scatter_terms(const Problem& problem, const Choice& choice, const Numbers& n, Terms& t) {
    const Site& site = problem.site;
    t.scat = scatter_seconds(problem, choice, n);
    const double owned = n.parameters * n.owned;
    const double written = choice.handover == Handover::raw ? 0 : n.handover;
    t.sum = seconds(owned * 2 * (n.lists * n.payload + written), site.host_memory_rate);
    const double link = devices_link(site);
    const double handover = n.handover * n.parameters * n.copies / n.homes * n.on_drives;
    t.down = handover / link;
    t.tail = (t.encode + t.out + t.scat + t.sum + t.down) / problem.work.model.blocks;
    t.bwd = backward_seconds(problem, choice, n, t) + t.tail;
}

// New parameters that a node that computes gets from others like it, and so sends to these.
double gather_bytes_beside(const Choice& choice, const Numbers& n) {
    const double part = 1.0 / choice.parameters.nodes - 1.0 / choice.optimizer.nodes;
    return n.new_bytes * n.parameters * n.beside * part;
}

// The bytes that a node gets from storage nodes.
double gather_bytes_of_storage(const Numbers& n) {
    return n.new_bytes * n.parameters * (1 - n.beside);
}

// Sets the time of new parameters to the GPUs, in `messages` messages to each node.
void set_delivery_terms(const Problem& problem, const Choice& choice, const Numbers& n,
                        double messages, Terms& t) {
    const Site& site = problem.site;
    t.up = n.new_bytes * n.parameters * n.copies / n.homes * n.on_drives / devices_link(site);
    // A node gets what several storage nodes send, and these send to several nodes.
    const double from_storage = gather_bytes_of_storage(n);
    const double received = gather_bytes_beside(choice, n) + from_storage;
    const double most =
        from_storage > 0 ? std::max(received, from_storage * n.nodes / n.storage) : received;
    const double peers = n.storage > 0 ? n.nodes : choice.optimizer.nodes - 1;
    t.gather = most > 0
                   ? bulk_seconds(site, most, n.storage > 0 ? n.nodes : choice.optimizer.nodes) +
                         site.latency_s * peers * messages
                   : 0;
    if (choice.home == Home::gpu) {
        const double node_bytes =
            problem.work.trained * n.element * n.parameters / choice.parameters.nodes;
        const double kept = 1.0 / choice.parameters.gpus - 1 / n.gpus;
        t.load = std::max(node_bytes / n.gpus / site.gpu_link,
                          seconds(node_bytes * kept, site.gpu_to_gpu));
    }
}

// The whole step; before the optimizer's mesh is known, without the update that follows from it.
double least_resident_seconds(const Problem& problem, const Choice& choice, const Numbers& n,
                              Known known, Terms t) {
    set_resident_terms(problem, choice, n, t);
    return known == Known::with_optimizer ? t.step : t.fwd + t.bwd + t.norm;
}

void set_update_terms(const Problem& problem, const Choice& choice, const Numbers& n, Terms& t) {
    const Site& site = problem.site;
    const DeviceTime device = device_time(problem, n.handover, n.new_bytes);
    const double share = n.share();
    const bool is_serial = problem.work.is_serial;
    const int slots = problem.work.slots;
    // State that slots keep is not read, and is written while the next step computes.
    const double kept = problem.work.kept;
    t.csd = share * ((1 - kept) * device.per_parameter(is_serial, slots) + kept * device.engine);
    const TierSeconds tiers = tier_seconds(problem, choice, n);
    t.memory = tiers.memory;
    t.gpu = tiers.gpu;
    const double subgroups = std::ceil(n.most_tiles / n.subgroup_tiles);
    set_delivery_terms(problem, choice, n, subgroups, t);
    // A pipeline of K subgroups takes the time of its slowest stage, and 1/K of all others.
    const double slowest = largest({t.csd, t.memory, t.gpu, t.up, t.gather, t.load});
    const double all = (is_serial ? t.csd : share * (device.read + device.engine + device.write)) +
                       t.up + t.gather + t.load;
    t.fill = std::max(0.0, all - slowest) / subgroups;
    const double both_ways = seconds(n.new_bytes * n.parameters * n.copies / n.homes * n.on_drives,
                                     site.host_link_total);
    t.opt = std::max(slowest, both_ways) + t.fill;
    // The next forward starts with the first subgroups and cannot end before the last ones arrive.
    const double blocks = problem.work.model.blocks;
    const double forward = t.fwd / n.rounds;  // only its first round overlaps the update
    const double first = std::min(t.opt, t.fill + slowest / std::min(subgroups, blocks));
    const double network = t.gather + network_seconds(site, n, choice.parameters);
    // The GPU does what it updates before the forward.
    double both = largest({t.opt + forward / blocks, first + forward,
                           t.gpu + std::max(t.fwd_gpu / n.rounds, forward / blocks), network});
    if (choice.home == Home::storage) {  // the drives do the work of both
        both = largest(
            {both, share * device.read + seconds_of_masters(site, problem.work, n),
             share * device.write + n.inputs_on_drives / drives_rate(site, site.device_write),
             share * device.both +
                 seconds(masters_on_drives(problem.work, n) + 2 * n.inputs_on_drives,
                         site.csds * site.device_total)});
    }
    t.overlap = std::max(0.0, t.opt + forward - both);
    const double written = kept_state(problem, choice, n).written;
    t.step = largest(
        {t.fwd + t.bwd + t.norm + t.opt - t.overlap, share * (1 - kept) * device.read,
         seconds(written, site.device_write),
         seconds(share * (1 - kept) * problem.work.state_bytes + written, site.device_total)});
}

}  // namespace

std::span<const TermName> term_names() {
    static constexpr std::array<TermName, 24> kNames = {{
        {"T_fwd_gpu", &Terms::fwd_gpu, "a GPU's matrix products in forward", false},
        {"T_fwd_load", &Terms::fwd_load, "parameters to the GPU in forward", false},
        {"T_fwd", &Terms::fwd, "forward", true},
        {"T_bwd_gpu", &Terms::bwd_gpu, "matrix products in backward", false},
        {"T_bwd_load", &Terms::bwd_load, "parameters to the GPU in backward", false},
        {"T_reduce", &Terms::reduce, "sums of dense gradients", false},
        {"T_encode", &Terms::encode, "encoding gradients", false},
        {"T_out", &Terms::out, "payloads from GPU to host", false},
        {"T_scat", &Terms::scat, "gradients between nodes", false},
        {"T_sum", &Terms::sum, "sums at the owner", false},
        {"T_down", &Terms::down, "gradients to the devices", false},
        {"T_tail", &Terms::tail, "the last block's way to the devices", false},
        {"T_bwd", &Terms::bwd, "backward", true},
        {"T_norm", &Terms::norm, "the norm, for which all wait", true},
        {"T_csd", &Terms::csd, "reads, update and writes of the state on drives", false},
        {"T_memory", &Terms::memory, "update of the state in host memory", false},
        {"T_gpu", &Terms::gpu, "update of the state in GPU memory", false},
        {"T_up", &Terms::up, "new parameters from devices to host", false},
        {"T_gather", &Terms::gather, "new parameters between nodes", false},
        {"T_load", &Terms::load, "new parameters to GPUs", false},
        {"T_fill", &Terms::fill, "the first subgroup through all stages", false},
        {"T_opt", &Terms::opt, "update", true},
        {"T_overlap", &Terms::overlap, "what update and next forward share", true},
        {"T_step", &Terms::step, "the step", true},
    }};
    return kNames;
}

Volumes volumes_of(const Problem& problem, const Choice& choice) {
    const Numbers n(problem, choice);
    // The share of the parameters that one node's drives hold, counting all copies.
    const double share = n.copies / n.homes * n.on_drives;
    const double inputs = n.rounds * n.inputs_on_drives / n.parameters;
    const double logged =
        problem.work.keeping == csd::Keeping::logged
            ? kept_state(problem, choice, n).written * problem.most_csds() / n.parameters
            : 0;
    const double masters = choice.home == Home::storage
                               ? 2 * n.rounds * masters_on_drives(problem.work, n) / n.parameters
                               : 0;
    return {.host_down = n.handover * share + inputs,
            .host_up = n.new_bytes * share + masters + inputs,
            .device_read = problem.work.state_bytes * share + masters + inputs,
            .device_write = problem.work.state_bytes * share + logged + inputs,
            .network_gradients = scatter_bytes(choice, n) / n.parameters +
                                 n.rounds * network_bytes(n, choice.gradients) / n.parameters,
            .network_parameters =
                (gather_bytes_beside(choice, n) + gather_bytes_of_storage(n)) / n.parameters +
                2 * n.rounds * network_bytes(n, choice.parameters) / n.parameters};
}

double least_seconds(const Problem& problem, const Choice& choice, Known known) {
    Choice finest = choice;
    finest.subgroup_tiles = 1;  // over the most nodes
    const Numbers n(problem, finest);
    const double blocks = problem.work.model.blocks;
    Terms t;
    Choice most_kept = choice;  // as if no state were in GPU memory
    most_kept.shares = {};
    set_gpu_terms(problem, most_kept, n, t);
    if (choice.state == StateHome::gpu) {
        return least_resident_seconds(problem, choice, n, known, t);
    }
    // Any share of the state may lie on storage nodes, unless it is known.
    const bool may_be_apart = problem.storage_nodes > 0 && choice.shares != Shares{};
    t.scat = may_be_apart ? bulk_seconds(problem.site, scatter_bytes(choice, n), 1)
                          : scatter_seconds(problem, choice, n);
    t.tail = (t.encode + t.out + t.scat) / blocks;
    set_delivery_terms(problem, choice, n, 1, t);
    if (known == Known::before_optimizer) {
        t.gather = 0;  // copies of the state save a part of it
    }
    const DeviceTime device = device_time(problem, 0, n.new_bytes);
    const double update = largest(
        {n.share() * largest({device.read, device.engine, device.write}), t.up, t.gather, t.load});
    const double forward = t.fwd / n.rounds;
    // The overlap is computed as in set_update_terms, with no fill time and as many subgroups as
    // possible.
    const double both = std::max(update + forward / blocks, forward + update / blocks);
    return t.fwd - forward + backward_seconds(problem, choice, n, t) + t.tail + t.norm + both;
}

Cost cost_of(const Problem& problem, const Choice& choice) {
    const Numbers n(problem, choice);
    Cost cost;
    set_gpu_terms(problem, choice, n, cost.terms);
    if (choice.state == StateHome::gpu) {
        set_resident_terms(problem, choice, n, cost.terms);
    } else {
        set_scatter_terms(problem, choice, n, cost.terms);
        set_update_terms(problem, choice, n, cost.terms);
    }
    cost.demand = demand_of(problem, choice, n);
    cost.volumes = volumes_of(problem, choice);
    return cost;
}

}  // namespace nearstep::plan
