#include "doctor/doctor.hpp"

#include "base/error.hpp"
#include "base/version.hpp"
#include "doctor/findings.hpp"
#include "doctor/system.hpp"
#include "mpi/topology.hpp"
#include "train/summary.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <vector>

namespace nearstep::doctor {

namespace {

using Json = nlohmann::ordered_json;

void print(const Json& node, int ranks) {
    std::string numbers;
    for (const Json& rank : node["ranks"]) {
        numbers += (numbers.empty() ? "" : ",") + std::to_string(rank.get<int>());
    }
    std::cout << "node " << node["host"].get<std::string>() << ": ranks " << numbers << " of "
              << ranks << ", Linux " << node["kernel"].get<std::string>() << "\n";
    const Json& findings = node["findings"];
    std::size_t width = 0;
    for (const auto& [topic, facts] : findings.items()) {
        width = std::max(width, topic.size());
    }
    for (const auto& [topic, facts] : findings.items()) {
        std::string words = topic;
        std::replace(words.begin(), words.end(), '_', ' ');
        std::cout << "  " << words << std::string(width - topic.size() + 2, ' ')
                  << facts["summary"].get<std::string>() << "\n";
    }
}

}  // namespace

void examine(const mpi::Communicator& world, const config::Run& run, const std::string& json) {
    world.together([&] {
        if (world.rank() == 0 && !json.empty()) {
            train::check_writable(json);
        }
    });
    const mpi::Topology nodes = mpi::discover_nodes(world);
    std::string mine;
    if (nodes.rank_in_group(world.rank()) == 0) {
        const auto group =
            static_cast<std::size_t>(nodes.group_of[static_cast<std::size_t>(world.rank())]);
        const System system = find_system();
        const Json node = {{"host", system.host},
                           {"kernel", system.kernel},
                           {"ranks", nodes.ranks_of[group]},
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
    world.together([&] {
        if (world.rank() != 0) {
            return;
        }
        std::cout << "nearstep " << version() << ", commit " << commit() << ", site " << run.site
                  << "\n";
        for (const Json& node : report["nodes"]) {
            print(node, world.size());
        }
        if (!json.empty()) {
            train::write_whole_file(json, report.dump(2) + "\n");
        }
    });
}

}  // namespace nearstep::doctor
