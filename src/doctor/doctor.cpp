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

void print_node(const Json& node, int ranks, std::ostream& out) {
    out << "node " << node["host"].get<std::string>() << ": ranks " << joined(node["ranks"], ",")
        << " of " << ranks << ", Linux " << node["kernel"].get<std::string>() << "\n";
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
    const mpi::Topology nodes = mpi::discover_nodes(world);
    std::string mine;
    if (nodes.rank_in_group(world.rank()) == 0) {
        const System system = find_system();
        const Json node = {{"host", system.host},
                           {"kernel", system.kernel},
                           {"ranks", nodes.ranks_beside(world.rank())},
                           {"findings", find_all(run, system)}};
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
