// Gathers and prints the findings of all nodes. Called by the command doctor.
#include "doctor/doctor.hpp"

#include "base/version.hpp"
#include "doctor/findings.hpp"
#include "doctor/system.hpp"
#include "mpi/topology.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace nearstep::doctor {

namespace {

using Json = nlohmann::ordered_json;

// From here on ranks only hold the state. All ranks have both duties if there are fewer of them
// than the run's, such as one on the user's own machine.
int first_storage_rank(const config::Run& run, int ranks) {
    return run.csd.storage_ranks < ranks ? ranks - run.csd.storage_ranks : ranks;
}

Duties duties_of(const config::Run& run, int rank, int ranks) {
    const int first = first_storage_rank(run, ranks);
    return {.computes = rank < first,
            .holds = rank >= first || first == ranks || run.csd.per_rank.size() > 1};
}

void print_node(const Json& node, int ranks, std::ostream& out) {
    out << "node " << node["host"].get<std::string>() << ": ranks " << joined(node["ranks"], ",")
        << " of " << ranks
        << (!node["computes"].get<bool>() ? ", holds the state alone"
            : !node["holds"].get<bool>()  ? ", computes alone"
                                          : "")
        << ", Linux " << node["kernel"].get<std::string>() << "\n";
    const Json& findings = node["findings"];
    std::size_t width = 0;
    for (const auto& [topic, facts] : findings.items()) {
        width = std::max(width, topic.size());
    }
    for (const auto& [topic, facts] : findings.items()) {
        std::string words = topic;
        std::replace(words.begin(), words.end(), '_', ' ');
        out << "  " << words << std::string(width - topic.size() + 2, ' ')
            << facts["summary"].get<std::string>() << "\n";
    }
}

}  // namespace

Json examine(const mpi::Communicator& world, const config::Run& run) {
    const mpi::Topology nodes =
        mpi::set_apart_from(mpi::discover_nodes(world), first_storage_rank(run, world.size()));
    std::string mine;
    if (nodes.rank_in_group(world.rank()) == 0) {
        const System system = find_system();
        const Duties duties = duties_of(run, world.rank(), world.size());
        const Json node = {{"host", system.host},
                           {"kernel", system.kernel},
                           {"ranks", nodes.ranks_beside(world.rank())},
                           {"computes", duties.computes},
                           {"holds", duties.holds},
                           {"findings", find_all(run, system, duties)}};
        mine = node.dump();
    }
    Json report = {{"version", version()},
                   {"commit", commit()},
                   {"site", run.site},
                   {"ranks", world.size()},
                   {"nodes", Json::array()}};
    for (const std::vector<int>& ranks : nodes.ranks_of) {
        report["nodes"].push_back(Json::parse(world.broadcast(mine, ranks.front())));
    }
    return report;
}

void print(const Json& report, std::ostream& out) {
    out << "nearstep " << report["version"].get<std::string>() << ", commit "
        << report["commit"].get<std::string>() << ", site " << report["site"].get<std::string>()
        << "\n";
    for (const Json& node : report["nodes"]) {
        print_node(node, report["ranks"].get<int>(), out);
    }
}

}  // namespace nearstep::doctor
