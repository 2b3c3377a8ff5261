// Reads the topology of a made-up machine of two nodes: one has a drive; the other has a GPU, a
// drive and an adapter for InfiniBand.
#include "locality/machine_nodes.hpp"

#include "base/machine.hpp"
#include "support/places.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace nearstep::locality {
namespace {

class TwoNodes : public testing::Test {
protected:
    void SetUp() override {
        ::setenv("HWLOC_XMLFILE", test::source_file("tests/locality/two_nodes.xml").c_str(), 1);
    }
    void TearDown() override { ::unsetenv("HWLOC_XMLFILE"); }
};

TEST_F(TwoNodes, HaveTheirDevicesNear) {
    const MachineNodes machine;
    ASSERT_EQ(machine.nodes().size(), 2U);
    EXPECT_EQ(machine.nodes()[1].number, 1);
    EXPECT_EQ(machine.nodes()[1].cpus, std::vector{1});
    EXPECT_EQ(machine.node_of_drive("/dev/nvme0n1"), 0);
    EXPECT_EQ(machine.node_of_drive("nvme1n1"), 1);
    EXPECT_EQ(machine.node_of_drive("/dev/sda"), std::nullopt);
    EXPECT_EQ(machine.node_of_drive(""), std::nullopt);
    EXPECT_EQ(machine.node_of_gpu(0x8100), 1);
    EXPECT_EQ(machine.node_of_gpu(0x9900), std::nullopt);
    EXPECT_EQ(machine.distance(0, 1), 32);
    EXPECT_EQ(machine.distance(1, 1), 10);
    const std::vector<Adapter> adapters = machine.adapters();
    ASSERT_EQ(adapters.size(), 3U);
    EXPECT_EQ(adapters[0].name, "ib0");
    EXPECT_EQ(adapters[0].node, 1);
    EXPECT_EQ(adapters[1].name, "lo");
    EXPECT_EQ(adapters[1].node, std::nullopt);
    EXPECT_EQ(adapters[2].name, "mlx5_0");
}

TEST_F(TwoNodes, BindNobodyUnlessTheyAreThisMachines) { EXPECT_FALSE(MachineNodes().may_bind()); }

TEST(ThisMachine, HasTheCpusOfThisProcess) {
    const MachineNodes machine;
    std::vector<int> cpus;
    for (const NumaNode& node : machine.nodes()) {
        cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
    }
    EXPECT_GE(cpus.size(), usable_cpus().size());
}

TEST(ADamagedTopology, IsOneNodeWithoutDevices) {
    ::setenv("HWLOC_XMLFILE", "/nowhere", 1);
    const MachineNodes machine;
    ::unsetenv("HWLOC_XMLFILE");
    ASSERT_GE(machine.nodes().size(), 1U);
    EXPECT_EQ(machine.node_of_drive("nvme9n9"), std::nullopt);
}

}  // namespace
}  // namespace nearstep::locality
