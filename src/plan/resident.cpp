// Times a step whose optimizer state lies in GPU memory, by AMSP's cost of each mesh. Called by
// cost.cpp.
#include "plan/resident.hpp"

#include "plan/formulas.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::plan {

namespace {

// Seconds on the links inside a node and on the network. Transfers share a link, and the two links
// work at the same time.
struct Links {
    double node = 0;
    double network = 0;

    double longest() const { return std::max(node, network); }
    friend Links operator+(const Links& one, const Links& other) {
        return {one.node + other.node, one.network + other.network};
    }
};

// The share of a vector that enters and leaves a node when `size` GPUs of several nodes gather or
// reduce it.
double share_of_network(const Choice& choice, double nodes, double size) {
    return nodes > 1 ? 1 - 1 / (choice.collective == Collective::ring ? size : nodes) : 0;
}

// One gather of all parameters over a mesh, or reduction of all gradients, layer by layer.
Links pass(const Problem& problem, const Choice& choice, const Numbers& n, const Mesh& mesh) {
    const Site& site = problem.site;
    const double bytes = n.element * n.parameters;
    const double sent = bytes * share_of_network(choice, mesh.nodes, mesh.size());
    return {.node = mesh.gpus > 1 ? seconds(bytes * (1 - 1.0 / mesh.size()), site.gpu_to_gpu) : 0,
            .network = layer_seconds(site, sent, mesh.nodes) +
                       site.latency_s * (mesh.nodes - 1) * problem.work.model.blocks};
}

// The sum of gradients that are already sharded over their mesh, over all copies of it.
Links sum_of_copies(const Problem& problem, const Choice& choice, const Numbers& n) {
    const Mesh& mesh = choice.gradients;
    const double of_node = n.element * n.parameters / mesh.nodes;
    const double groups = n.nodes / mesh.nodes;  // of nodes, with all copies in them
    const double copies = static_cast<double>(problem.ranks()) / mesh.size();
    return {.node = seconds(2 * of_node / mesh.gpus * (1 - mesh.gpus / n.gpus),
                            problem.site.gpu_to_gpu),
            .network = bulk_seconds(
                problem.site, 2 * of_node * share_of_network(choice, groups, copies), groups)};
}

// New parameters from their owners to every GPU that keeps them.
Links broadcast(const Problem& problem, const Choice& choice, const Numbers& n) {
    const Mesh& from = choice.optimizer;
    const Mesh& to = choice.parameters;
    const double bytes = n.element * n.parameters;
    return {.node = seconds(bytes / to.nodes * (1.0 / to.gpus - 1.0 / from.gpus),
                            problem.site.gpu_to_gpu),
            .network = bulk_seconds(problem.site, bytes * (1.0 / to.nodes - 1.0 / from.nodes),
                                    static_cast<double>(from.nodes) / to.nodes)};
}

// Reads and writes the state, and reads gradients and writes parameters.
double update_seconds(const Problem& problem, const Choice& choice, const Numbers& n) {
    return seconds(
        2 * (problem.work.state_bytes + n.element) * n.parameters / choice.optimizer.size(),
        problem.site.gpu_memory_rate);
}

}  // namespace

void set_resident_terms(const Problem& problem, const Choice& choice, const Numbers& n, Terms& t) {
    const Site& site = problem.site;
    const double blocks = problem.work.model.blocks;
    const bool hides = choice.hidden != Hidden::none;
    const Links forward = pass(problem, choice, n, choice.parameters);
    const Links again = choice.again == Again::whole_mesh
                            ? forward
                            : pass(problem, choice, n, {.gpus = site.gpus, .nodes = 1});
    const Links reduced = pass(problem, choice, n, choice.gradients);
    const Links summed = sum_of_copies(problem, choice, n);
    const Links sent = broadcast(problem, choice, n);
    t.encode = t.out = 0;

    t.fwd_load = n.rounds * forward.longest();
    t.fwd = hides ? std::max(t.fwd_gpu, t.fwd_load) : t.fwd_gpu + t.fwd_load;
    t.bwd_load = n.rounds * again.longest();
    t.reduce = n.rounds * reduced.longest();
    t.scat = summed.longest();
    const double apart = t.bwd_gpu + t.bwd_load + t.reduce;  // one after another
    if (hides) {
        const double work = (choice.hidden == Hidden::all
                                 ? std::max(t.bwd_gpu, n.rounds * (again + reduced).longest())
                                 : apart) /
                            n.rounds;
        t.tail = t.scat / blocks;
        t.bwd =
            (n.rounds - 1) * work + std::max(work, (again + reduced + summed).longest()) + t.tail;
    } else {
        t.bwd = apart + t.scat;
    }
    t.norm = 2 * site.latency_s * std::ceil(std::log2(problem.ranks()));

    t.csd = update_seconds(problem, choice, n);
    t.gather = sent.network;
    t.load = sent.node;
    t.opt = t.csd + sent.longest();
    if (choice.hidden <= Hidden::but_backward) {
        const double first = t.fwd / n.rounds;
        const double both = std::max({first + sent.longest() / blocks,
                                      sent.longest() + first / blocks, (forward + sent).longest()});
        t.overlap = std::max(0.0, first + sent.longest() - both);
    }
    t.step = t.fwd + t.bwd + t.norm + t.opt - t.overlap;
}

}  // namespace nearstep::plan
