// Asks hwloc what is near, and the other ranks of the host where they go. Called when a rank's
// resources are made.
#include "engine/placement/rank_binding.hpp"

#include "base/error.hpp"
#include "base/number_list.hpp"
#include "locality/machine_nodes.hpp"
#include "locality/node_choice.hpp"
#include "memory/gpu.hpp"
#include "mpi/gathered_text.hpp"
#include "store/drive.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace nearstep::engine {

namespace {

using locality::MachineNodes;
using Place = std::optional<int>;  // in MachineNodes::nodes(); nullopt: near to none

// The NUMA nodes that are near the devices of a rank.
struct DeviceNodes {
    bool has_gpu = false;
    Place gpu = {};
    std::vector<Place> drives = {};
};

DeviceNodes find_device_nodes(const MachineNodes& machine, const std::vector<std::string>& files,
                              std::optional<int> gpu) {
    DeviceNodes found{.has_gpu = gpu.has_value()};
    if (gpu) {
        found.gpu = machine.node_of_gpu(memory::address_of_gpu(*gpu));
    }
    for (const std::string& file : files) {
        found.drives.push_back(machine.node_of_drive(store::drive_of(file).name));
    }
    return found;
}

// A rank's GPU and all of its drives together move about as much in a step: see choose_nodes().
std::vector<double> moved_by(const DeviceNodes& devices, std::size_t nodes) {
    std::vector<double> moved(nodes, 0);
    if (devices.gpu) {
        moved[static_cast<std::size_t>(*devices.gpu)] += 1;
    }
    for (const Place& drive : devices.drives) {
        if (drive) {
            moved[static_cast<std::size_t>(*drive)] +=
                1 / static_cast<double>(devices.drives.size());
        }
    }
    return moved;
}

std::vector<std::vector<double>> distances_of(const MachineNodes& machine) {
    const auto count = static_cast<int>(machine.nodes().size());
    std::vector<std::vector<double>> distances(machine.nodes().size());
    for (int node = 0; node < count; ++node) {
        for (int other = 0; other < count; ++other) {
            distances[static_cast<std::size_t>(node)].push_back(machine.distance(node, other));
        }
    }
    return distances;
}

std::string name_of(const MachineNodes& machine, const Place& place) {
    return place ? text(machine.nodes()[static_cast<std::size_t>(*place)].number) : "?";
}

// "(GPU 1, drives 1 1)".
std::string words_of(const MachineNodes& machine, const DeviceNodes& devices) {
    std::string words;
    if (devices.has_gpu) {
        words += text("GPU ", name_of(machine, devices.gpu));
    }
    if (!devices.drives.empty()) {
        words += text(words.empty() ? "" : ", ", devices.drives.size() == 1 ? "drive" : "drives");
        for (const Place& drive : devices.drives) {
            words += text(" ", name_of(machine, drive));
        }
    }
    return words.empty() ? "" : text(" (", words, ")");
}

std::string describe_adapters(const MachineNodes& machine) {
    std::vector<std::string> known;
    for (const locality::Adapter& adapter : machine.adapters()) {
        if (adapter.node) {
            known.push_back(text(adapter.name, " ", name_of(machine, adapter.node)));
        }
    }
    return known.empty() ? "" : text("; network adapters of rank 0's host: ", first_of(known));
}

// Binds this rank unless it is to stay as it is. Collective over the host's ranks.
void bind_one(const mpi::Communicator& host, const MachineNodes& machine,
              const DeviceNodes& devices) {
    const std::size_t nodes = machine.nodes().size();
    const std::array mine{machine.may_bind() ? static_cast<double>(nodes) : 0.0};
    // Containers of one host may differ in the nodes that they see.
    const std::vector<double> all = host.all_gather(mine);
    if (mine.front() < 2 || std::ranges::count(all, mine.front()) != host.size()) {
        return;
    }
    const std::vector<double> gathered = host.all_gather(moved_by(devices, nodes));
    std::vector<std::vector<double>> moved;
    for (auto at = gathered.begin(); at != gathered.end(); at += static_cast<long>(nodes)) {
        moved.emplace_back(at, at + static_cast<long>(nodes));
    }
    const std::vector<int> chosen = locality::choose_nodes(moved, distances_of(machine));
    if (!chosen.empty()) {
        machine.bind(chosen[static_cast<std::size_t>(host.rank())]);
    }
}

}  // namespace

std::vector<std::string> bind_near_devices(const mpi::Communicator& world,
                                           const std::vector<std::string>& files,
                                           std::optional<int> gpu) {
    const MachineNodes machine;
    if (world.agree(machine.nodes().size() == 1)) {
        return {"every host has one NUMA node, so ranks are not bound"};
    }
    const DeviceNodes devices = find_device_nodes(machine, files, gpu);
    const mpi::Communicator host =
        world.split(world.first_ranks_of_nodes()[static_cast<std::size_t>(world.rank())]);
    bind_one(host, machine, devices);
    const Place bound = machine.own_node();
    std::vector<std::string> ranks =
        mpi::gather_text(world, text(bound ? text("on ", name_of(machine, bound)) : "not bound",
                                     words_of(machine, devices)));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        ranks[rank] = text("rank ", rank, " ", ranks[rank]);
    }
    return {text("NUMA nodes of ranks: ", first_of(ranks),
                 world.broadcast(describe_adapters(machine), 0))};
}

}  // namespace nearstep::engine
