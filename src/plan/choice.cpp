// Lists and names a plan's choices. Used by the search and by reports.
#include "plan/choice.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "plan/numbers.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::plan {

namespace {

void put_first(std::vector<Mesh>& meshes, const Mesh& first) {
    const auto place = std::ranges::find(meshes, first);
    std::rotate(meshes.begin(), place, place + 1);
}

// All rows pass a block before the next one, so a block's gradient is final after one visit.
// Parameters that several ranks share stream from the hosts. Layers are kept, and their inputs wait
// on the GPU, where parameters stay on it. The mesh of gradients decides the scatter: those of
// fewer than a node's GPUs are not summed over the node.
bool is_of_program(const Problem& problem, const Choice& choice) {
    const bool keeps = choice.kept != Kept::inputs;
    const bool is_resident = choice.home == Home::gpu && choice.parameters.size() == 1;
    const bool is_whole_sum = choice.gradients.gpus == problem.site.gpus;
    const bool may_span_nodes = choice.gather == Gather::dense && problem.storage_nodes == 0;
    return choice.state == StateHome::devices && choice.order == Order::by_block &&
           (is_resident || choice.home == Home::host) &&
           (!keeps || (is_resident && choice.inputs == Inputs::gpu)) &&
           (is_whole_sum || choice.scatter == Scatter::flat) &&
           (choice.parameters.nodes == 1 || may_span_nodes) &&
           (choice.gradients.nodes == 1 || !problem.work.has_error_feedback);
}

// Every rank has all parameters, and adds up its own micro-batches before ranks exchange gradients.
// Layers that stream from the host keep as many as fit; without streaming, all or none.
bool is_of_python(const Problem& problem, const Choice& choice) {
    const bool streams_from_host =
        choice.home == Home::host && choice.order == Order::by_micro_batch &&
        choice.kept != Kept::all && (choice.sums == Sums::host || micro_batches(problem) <= 1);
    const bool is_on_gpu = choice.home == Home::gpu && choice.order == Order::by_micro_batch &&
                           choice.kept != Kept::most && choice.inputs == Inputs::gpu;
    const bool is_from_storage = choice.home == Home::storage && choice.kept == Kept::inputs;
    return choice.state == StateHome::devices && choice.parameters.size() == 1 &&
           choice.gradients.size() == 1 && (streams_from_host || is_on_gpu || is_from_storage);
}

// PyTorch divides parameters and gradients among the same ranks, and reduces gradients in each
// backward pass.
bool is_of_fsdp2(const Problem& problem, const Choice& choice) {
    const bool is_whole_sum = choice.gradients.gpus == problem.site.gpus;
    return choice.state == StateHome::devices && choice.parameters.size() > 1 &&
           choice.gradients == choice.parameters && choice.optimizer.size() == problem.ranks() &&
           choice.home == Home::gpu && choice.order == Order::by_micro_batch &&
           choice.kept != Kept::most && choice.inputs == Inputs::gpu && choice.sums == Sums::gpu &&
           choice.codec == Codec::dense && choice.gather == Gather::dense &&
           problem.storage_nodes == 0 && (is_whole_sum || choice.scatter == Scatter::flat);
}

}  // namespace

bool is_within(const Mesh& inner, const Mesh& outer) {
    return outer.gpus % inner.gpus == 0 && outer.nodes % inner.nodes == 0;
}

int lists_of(const Problem& problem, const Choice& choice) {
    return choice.scatter == Scatter::flat ? problem.ranks() / choice.gradients.size()
                                           : problem.nodes / choice.gradients.nodes;
}

bool is_allowed(const Problem& problem, const Choice& choice) {
    if (choice.state == StateHome::gpu) {
        return is_within(choice.parameters, choice.gradients) &&
               is_within(choice.gradients, choice.optimizer) && problem.storage_nodes == 0 &&
               choice.home == Home::gpu && choice.codec == Codec::dense &&
               choice.kept != Kept::most && choice.inputs == Inputs::gpu &&
               choice.sums == Sums::gpu && choice.gather == Gather::dense &&
               choice.scatter == Scatter::hierarchical && choice.handover == Handover::raw;
    }
    const bool has_sums = choice.order == Order::by_micro_batch && micro_batches(problem) > 1;
    return choice.again == Again::whole_mesh && choice.hidden == Hidden::all &&
           (choice.sums == Sums::gpu || has_sums) &&
           (choice.inputs == Inputs::gpu ||
            (choice.kept != Kept::all && choice.home != Home::storage)) &&
           choice.collective == Collective::hierarchical &&
           is_within(choice.parameters, choice.gradients) &&
           is_within(choice.gradients, choice.optimizer) &&
           (problem.storage_nodes == 0 ||
            (choice.gradients.nodes == 1 && choice.optimizer.size() == problem.ranks())) &&
           (choice.scatter == Scatter::hierarchical || choice.gradients.gpus < problem.site.gpus) &&
           (choice.home != Home::storage ||
            (problem.ranks() == 1 && choice.gather == Gather::dense &&
             (choice.sums == Sums::host) == has_sums));
}

Mesh mesh_of(int ranks, int gpus) {
    return {.gpus = std::min(ranks, gpus), .nodes = std::max(ranks / gpus, 1)};
}

std::vector<Mesh> meshes_of(const Problem& problem) {
    std::vector<Mesh> meshes;
    for (int gpus = 1; gpus <= problem.site.gpus; ++gpus) {
        if (problem.site.gpus % gpus == 0) {
            meshes.push_back({.gpus = gpus, .nodes = 1});
        }
    }
    for (int nodes = 2; nodes <= problem.nodes; ++nodes) {
        if (problem.nodes % nodes == 0) {
            meshes.push_back({.gpus = problem.site.gpus, .nodes = nodes});
        }
    }
    return meshes;
}

Space space_of(const Problem& problem, const std::vector<Codec>& codecs) {
    const std::vector<Mesh> meshes = meshes_of(problem);
    Space space;
    space.codecs = codecs;
    space.gathers = {Gather::dense};
    if (problem.work.element_bytes == 2) {
        space.gathers.push_back(Gather::delta);
    }
    space.parameters = meshes;
    space.homes = {Home::gpu, Home::host};
    const double host_bytes =
        problem.work.element_bytes * static_cast<double>(problem.work.model.parameters) +
        problem.work.bytes_in_memory();
    if (host_bytes > problem.site.host_memory) {
        space.homes.push_back(Home::storage);
    }
    space.orders = {Order::by_block, Order::by_micro_batch};
    space.kept = {Kept::all, Kept::most, Kept::inputs};
    space.inputs = {Inputs::gpu, Inputs::host};
    space.sums = {Sums::gpu, Sums::host};
    space.gradients = meshes;
    put_first(space.gradients, {.gpus = problem.site.gpus, .nodes = 1});
    space.scatters = {Scatter::hierarchical};
    if (problem.site.gpus > 1) {
        space.scatters.push_back(Scatter::flat);
    }
    space.optimizers.assign(meshes.rbegin(), meshes.rend());
    space.handovers = {Handover::raw, Handover::dense};
    space.subgroups = {16, 32, 64, 128, 256, 8, 4, 2, 1};
    space.clients.assign(kClients.begin(), kClients.end());
    return space;
}

std::optional<Client> client_of(const Problem& problem, const Choice& choice,
                                std::span<const Client> clients) {
    const auto trains = [&](Client client) {
        switch (client) {
            case Client::program:
                return is_of_program(problem, choice);
            case Client::python:
                return is_of_python(problem, choice);
            case Client::fsdp2:
                return is_of_fsdp2(problem, choice);
        }
        return false;
    };
    const auto found = std::ranges::find_if(clients, trains);
    return found == clients.end() ? std::nullopt : std::optional(*found);
}

std::vector<config::Tiers> tiers_of(const config::Tiers& asked) {
    const auto may_be = [](const std::optional<double>& tier) {
        return tier ? std::vector{tier} : std::vector<std::optional<double>>{0, std::nullopt};
    };
    std::vector<config::Tiers> tiers;
    for (const std::optional<double>& gpu : may_be(asked.gpu)) {
        for (const std::optional<double>& memory : may_be(asked.memory)) {
            tiers.push_back({.gpu = gpu, .memory = memory});
        }
    }
    return tiers;
}

Space resident_space_of(const Problem& problem) {
    Space space;
    space.states = {StateHome::gpu};
    space.codecs = {Codec::dense};
    space.gathers = {Gather::dense};
    space.parameters = space.gradients = meshes_of(problem);
    space.homes = {Home::gpu};
    space.orders = {Order::by_micro_batch, Order::by_block};
    space.kept = {Kept::all, Kept::inputs};
    space.scatters = {Scatter::hierarchical};
    space.optimizers = space.parameters;
    space.handovers = {Handover::raw};
    space.subgroups = {Choice{}.subgroup_tiles};
    return space;
}

std::string name_of(const Shares& shares) {
    if (shares == Shares{}) {
        return "drives";
    }
    std::string out;
    for (const auto& [share, where] :
         {std::pair{shares.gpu, "in GPU memory"}, std::pair{shares.memory, "in host memory"},
          std::pair{shares.of_drives(), "on drives"}}) {
        if (share > 0) {
            out += (out.empty() ? "" : " + ") + formatted("%.2g %s", share, where);
        }
    }
    return out;
}

std::string name_of(const Mesh& mesh, const Problem& problem) {
    if (mesh.size() == problem.ranks()) {
        return "global";
    }
    if (mesh.size() == 1) {
        return "replicated";
    }
    if (mesh.size() == problem.site.gpus) {
        return "node";
    }
    return mesh.nodes == 1 ? text(mesh.gpus, " GPUs") : text(mesh.gpus, "x", mesh.nodes);
}

}  // namespace nearstep::plan
