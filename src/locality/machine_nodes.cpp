// Reads hwloc's topology. Used when the devices of a rank are made, and by the command doctor.
#include "locality/machine_nodes.hpp"

#include "base/machine.hpp"

#include <hwloc.h>

#include <algorithm>
#include <array>

namespace nearstep::locality {

namespace {

constexpr double kNear = 10;  // ACPI's value for a node's own memory
constexpr double kFar = 20;
// These plugins would load a GPU's driver. The addresses of GPUs are on the PCI bus, too.
constexpr std::array kLeftOut{"opencl", "gl", "cuda", "nvml", "rsmi", "levelzero"};

std::vector<int> cpus_in(hwloc_const_bitmap_t set) {
    std::vector<int> cpus;
    for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
        cpus.push_back(cpu);
    }
    return cpus;
}

}  // namespace

struct MachineNodes::Topology {
    hwloc_topology_t raw = nullptr;
    std::vector<hwloc_obj_t> nodes = {};  // as in nodes_

    Topology() = default;
    Topology(const Topology&) = delete;
    Topology& operator=(const Topology&) = delete;
    ~Topology() { hwloc_topology_destroy(raw); }
};

MachineNodes::MachineNodes() {
    auto found = std::make_shared<Topology>();
    if (hwloc_topology_init(&found->raw) == 0) {
        hwloc_topology_set_io_types_filter(found->raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
        for (const char* plugin : kLeftOut) {  // fails for those that are not installed
            hwloc_topology_set_components(found->raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                          plugin);
        }
        if (hwloc_topology_load(found->raw) == 0) {
            topology_ = std::move(found);
        }
    }
    for (hwloc_obj_t node = nullptr; topology_ != nullptr;) {
        node = hwloc_get_next_obj_by_type(topology_->raw, HWLOC_OBJ_NUMANODE, node);
        if (node == nullptr) {
            break;
        }
        // Memory of another kind, such as HBM, is a node with the same CPUs or with none.
        const std::vector<int> cpus = cpus_in(node->cpuset);
        if (!cpus.empty() && std::ranges::find(nodes_, cpus, &NumaNode::cpus) == nodes_.end()) {
            nodes_.push_back({static_cast<int>(node->os_index), cpus});
            topology_->nodes.push_back(node);
        }
    }
    if (nodes_.empty()) {
        topology_ = nullptr;
        nodes_ = {{0, usable_cpus()}};
    }
}

std::optional<int> MachineNodes::node_around(void* device) const {
    if (device == nullptr) {
        return std::nullopt;
    }
    const hwloc_obj* around =
        hwloc_get_non_io_ancestor_obj(topology_->raw, static_cast<hwloc_obj_t>(device));
    for (std::size_t i = 0; around != nullptr && i < nodes_.size(); ++i) {
        if (hwloc_bitmap_isincluded(around->cpuset, topology_->nodes[i]->cpuset) != 0) {
            return static_cast<int>(i);
        }
    }
    return std::nullopt;
}

std::vector<Adapter> MachineNodes::adapters() const {
    std::vector<Adapter> found;
    for (hwloc_obj_t device = nullptr; topology_ != nullptr;) {
        device = hwloc_get_next_osdev(topology_->raw, device);
        if (device == nullptr) {
            break;
        }
        const hwloc_obj_osdev_type_t kind = device->attr->osdev.type;
        if (kind == HWLOC_OBJ_OSDEV_NETWORK || kind == HWLOC_OBJ_OSDEV_OPENFABRICS) {
            found.push_back({device->name, node_around(device)});
        }
    }
    std::ranges::sort(found, {}, &Adapter::name);
    return found;
}

std::optional<int> MachineNodes::node_of_drive(const std::string& name) const {
    const std::string wanted = name.substr(name.rfind('/') + 1);
    for (hwloc_obj_t device = nullptr; topology_ != nullptr;) {
        device = hwloc_get_next_osdev(topology_->raw, device);
        if (device == nullptr || wanted == device->name) {
            return node_around(device);
        }
    }
    return std::nullopt;
}

std::optional<int> MachineNodes::node_of_gpu(std::uint64_t address) const {
    return topology_ == nullptr ? std::nullopt
                                : node_around(hwloc_get_pcidev_by_busid(
                                      topology_->raw, static_cast<unsigned>(address >> 16U),
                                      static_cast<unsigned>(address >> 8U & 0xFFU),
                                      static_cast<unsigned>(address & 0xFFU), 0));
}

double MachineNodes::distance(int node, int other) const {
    if (node == other) {
        return kNear;
    }
    hwloc_distances_s* matrix = nullptr;
    unsigned count = 1;
    if (topology_ == nullptr ||
        hwloc_distances_get_by_name(topology_->raw, "NUMALatency", &count, &matrix, 0) != 0 ||
        count == 0) {
        return kFar;
    }
    const auto value = [&](int of) { return topology_->nodes[static_cast<std::size_t>(of)]; };
    hwloc_uint64_t there = 0;
    hwloc_uint64_t back = 0;
    const bool is_known =
        hwloc_distances_obj_pair_values(matrix, value(node), value(other), &there, &back) == 0;
    hwloc_distances_release(topology_->raw, matrix);
    return is_known ? static_cast<double>(there) : kFar;
}

bool MachineNodes::may_bind() const {
    return topology_ != nullptr && hwloc_topology_is_thissystem(topology_->raw) != 0 &&
           usable_cpus() == cpus_in(hwloc_topology_get_topology_cpuset(topology_->raw));
}

std::optional<int> MachineNodes::own_node() const {
    const std::vector<int> mine = usable_cpus();
    const auto found = std::ranges::find_if(
        nodes_, [&](const NumaNode& node) { return std::ranges::includes(node.cpus, mine); });
    return found == nodes_.end() ? std::nullopt
                                 : std::optional(static_cast<int>(found - nodes_.begin()));
}

void MachineNodes::bind(int node) const {
    hwloc_set_cpubind(topology_->raw, topology_->nodes[static_cast<std::size_t>(node)]->cpuset,
                      HWLOC_CPUBIND_PROCESS);
}

}  // namespace nearstep::locality
