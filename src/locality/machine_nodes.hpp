// The NUMA nodes of this machine, the devices that are near each, and the binding of a process to
// one of them. hwloc finds them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::locality {

// A node that has CPUs which this process's container or batch system allows.
struct NumaNode {
    int number = 0;         // Linux's
    std::vector<int> cpus;  // ascending
};

// A network adapter of the machine: "eth0", "mlx5_0". `node` is a place in nodes(); nullopt: it is
// as near to several nodes, or nobody says.
struct Adapter {
    std::string name;
    std::optional<int> node;
};

class MachineNodes {
public:
    // Takes some milliseconds. Where hwloc finds nothing there is one node with no devices.
    MachineNodes();

    const std::vector<NumaNode>& nodes() const { return nodes_; }
    std::vector<Adapter> adapters() const;

    // The nearest node, as a place in nodes(). `name`: "nvme0n1", also as "/dev/nvme0n1".
    std::optional<int> node_of_drive(const std::string& name) const;
    // `address`: see memory::address_of_gpu().
    std::optional<int> node_of_gpu(std::uint64_t address) const;

    // How far memory of `other` is from the CPUs of `node`, in the firmware's units; 10 is near.
    double distance(int node, int other) const;

    // Whether ranks may be bound here: this is the real machine (hwloc's HWLOC_THISSYSTEM), and
    // nobody has bound this process to a part of it.
    bool may_bind() const;
    // The node whose CPUs alone this process may use; nullopt: it may use those of several.
    std::optional<int> own_node() const;
    // Binds all threads of this process, and those that they start, unless Linux refuses.
    void bind(int node) const;

private:
    struct Topology;

    std::optional<int> node_around(void* device) const;

    std::shared_ptr<Topology> topology_;  // null: hwloc found nothing
    std::vector<NumaNode> nodes_;
};

}  // namespace nearstep::locality
