// Compares step terms and memory needs with tables computed by hand.
#include "plan/cost.hpp"

#include "plan/published.hpp"
#include "plan/sample_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

namespace nearstep::plan {
namespace {

// Relative, because devices get whole tiles: an error of 0.7 % at 128 nodes.
void expect_close(double value, double expected, double relative = 0.012) {
    EXPECT_NEAR(value, expected, relative * expected + 1e-12);
}

struct TableRow {
    double csd88, csd150, gather, gather_delta, scatter_q4, scatter_topk, scatter_dense;
};

// 7e9 parameters, C = 10, 25 GB/s, seconds.
const std::map<int, TableRow> kTable = {
    {1, {7.95, 4.67, 0, 0, 0, 0, 0}},
    {8, {.994, .583, .490, .086, .130, .0098, .490}},
    {64, {.124, .0729, .551, .0965, .146, .0110, .551}},
    {128, {.0625, .0367, .556, .0972, .1476, .0111, .556}},
};

TEST(Terms, AreThoseOfTheTableComputedByHand) {
    for (const auto& [nodes, row] : kTable) {
        SCOPED_TRACE(nodes);
        Problem problem = seven_billion(nodes);
        Choice choice = usual(problem);
        const Terms dense = cost_of(problem, choice).terms;
        expect_close(dense.csd, row.csd150);
        expect_close(dense.gather, row.gather);
        expect_close(dense.scat, row.scatter_dense);
        choice.gather = Gather::delta;
        choice.codec = Codec::q4;
        expect_close(cost_of(problem, choice).terms.gather, row.gather_delta);
        expect_close(cost_of(problem, choice).terms.scat, row.scatter_q4);
        choice.codec = Codec::topk;
        expect_close(cost_of(problem, choice).terms.scat, row.scatter_topk);
        problem.work.is_serial = true;
        choice.handover = Handover::dense;
        expect_close(cost_of(problem, choice).terms.csd, row.csd150 * 150 / 93.75);
    }
}

// 7e6 parameters of a block are 106.8 tiles: 6.68 subgroups of 16 tiles, on as many of 64 nodes.
TEST(Terms, OfABlockOnFewNodesAreLimitedByTheLinksOfThese) {
    Problem problem = seven_billion(64);
    problem.work.model.blocks = 1000;
    Choice choice = usual(problem);
    expect_close(cost_of(problem, choice).terms.scat, kTable.at(64).scatter_dense * 64 / 6.68);
    expect_close(cost_of(problem, choice).terms.gather, kTable.at(64).gather);
    choice.subgroup_tiles = 1;
    expect_close(cost_of(problem, choice).terms.scat, kTable.at(64).scatter_dense);
    choice.subgroup_tiles = 16;
    choice.optimizer.nodes = 4;  // each of 16 copies is on fewer nodes than a block's subgroups
    expect_close(cost_of(problem, choice).terms.scat, 16 * kTable.at(64).scatter_dense);
    choice = usual(problem);
    choice.gradients.nodes = 16;  // adds up 16 / 6.68 times as long as over all of its nodes
    expect_close(cost_of(problem, choice).terms.reduce, 14e9 * 15 / 16 / 25e9 * 16 / 6.68);
}

TEST(Terms, OfStorageNodesShrinkWithThemUntilOneNodesNetworkIsFull) {
    Problem problem = seven_billion(2);
    Choice choice = usual(problem);
    choice.codec = Codec::q4;
    for (const auto& [storage, csd, scatter, gather] :
         {std::array{1.0, 4.67, .298, 1.12}, {2.0, 2.33, .149, .56}, {4.0, 1.17, .149, .56}}) {
        SCOPED_TRACE(storage);
        problem.storage_nodes = static_cast<int>(storage);
        const Terms terms = cost_of(problem, choice).terms;
        expect_close(terms.csd, csd);
        expect_close(terms.scat, scatter);
        expect_close(terms.gather, gather);
    }
    problem.nodes = 1;  // what a single one sends and gets
    choice = usual(problem);
    choice.codec = Codec::q4;
    const Volumes volumes = volumes_of(problem, choice);
    expect_close(volumes.network_gradients, .53125);
    expect_close(volumes.network_parameters, 2);
    expect_close(4 * volumes.device_read, 12);
}

// 2 nodes that compute with 5 of the 20 drives each, beside a storage node with 10.
TEST(Terms, OfDrivesOnBothKindsOfNodesAreThoseComputedByHand) {
    Problem problem = seven_billion(2);
    problem.storage_nodes = 1;
    problem.site.csds_beside = 5;
    Choice choice = usual(problem);
    EXPECT_EQ(problem.devices(), 20);
    EXPECT_EQ(problem.homes(), 2);
    Cost cost = cost_of(problem, choice);
    expect_close(cost.terms.csd, 7e9 / 20 * 12 / 1.8e9);
    // Half of all payloads leave for the storage node, which gets as many from each; a quarter
    // leaves for the other node.
    expect_close(cost.volumes.network_gradients, 2 * .75);
    expect_close(cost.terms.scat, 14e9 / 25e9);
    // The storage node sends its half of the parameters to both, each of which gets 3/4 of all.
    expect_close(cost.terms.gather, 14e9 / 25e9);
    expect_close(cost.volumes.network_parameters, 2 * .75);
    problem.site.csds = 5;  // nodes that compute have two thirds
    expect_close(cost_of(problem, choice).volumes.network_gradients, 2 * (1 / 3. + 1 / 3.));
    choice.shares = {.gpu = 1};
    cost = cost_of(problem, choice);
    expect_close(cost.volumes.network_gradients, 2 * .5);
    expect_close(cost.volumes.network_parameters, 2 * .5);
    EXPECT_EQ(cost.terms.csd, 0);
}

TEST(Terms, OfTheUpdateAndTheGatherMeetAtTheCrossover) {
    for (const int nodes : {9, 10}) {  // N* = 9.33 for w = 2 and r = 150
        const Problem problem = seven_billion(nodes);
        const Terms terms = cost_of(problem, usual(problem)).terms;
        EXPECT_EQ(terms.gather > terms.csd, nodes == 10);
    }
}

// On one node the slowest stage follows the replication's formula.
TEST(Terms, OfOneNodeFollowTheReplication) {
    for (const int devices : {1, 2, 4, 6, 10, 24}) {
        for (const bool is_serial : {true, false}) {
            SCOPED_TRACE(devices);
            Problem problem = seven_billion(1);
            problem.site.csds = devices;
            problem.site.device_link = problem.site.device_read;
            problem.site.device_updates = 550e6;
            problem.work.is_serial = is_serial;
            const Terms terms = cost_of(problem, usual(problem)).terms;
            const Replication formula = replication_of(problem, usual(problem), terms);
            expect_close(std::max(terms.csd, terms.up), formula.opt_n, 1e-3);
        }
    }
}

// Table I at e = 4: SmartUpdate moves 2M + 2M, which is 4 + 4 bytes per parameter. List entries of
// SmartComp have 8 bytes in the paper and 4 bytes here.
TEST(Volumes, OfTheHostLinkAreThoseOfTableI) {
    Problem problem = seven_billion(1);
    problem.work.element_bytes = 4;
    Choice choice = usual(problem);
    Volumes volumes = cost_of(problem, choice).volumes;
    EXPECT_DOUBLE_EQ(volumes.host_down, 4);
    EXPECT_DOUBLE_EQ(volumes.host_up, 4);
    EXPECT_DOUBLE_EQ(volumes.device_read, 12);
    EXPECT_DOUBLE_EQ(volumes.device_write, 12);
    choice.codec = Codec::topk;
    volumes = cost_of(problem, choice).volumes;
    EXPECT_NEAR(volumes.host_down, 0.08 / 2, 1e-4);
    EXPECT_DOUBLE_EQ(volumes.host_up, 4);
}

// Bytes that leave a node for 7e9 parameters at 64 nodes.
TEST(Volumes, OfHierarchicalScattersAreAnEighthOfFlatOnes) {
    const Problem problem = seven_billion(64);
    Choice choice = usual(problem);
    expect_close(cost_of(problem, choice).volumes.network_gradients * 7e9, 13.8e9);
    choice.codec = Codec::q4;
    expect_close(cost_of(problem, choice).volumes.network_gradients * 7e9, 3.66e9);
    choice.codec = Codec::topk;
    const double hierarchical = cost_of(problem, choice).volumes.network_gradients;
    expect_close(hierarchical * 7e9, .28e9, 0.02);
    choice.scatter = Scatter::flat;
    choice.gradients = {.gpus = 1, .nodes = 1};
    EXPECT_DOUBLE_EQ(cost_of(problem, choice).volumes.network_gradients, 8 * hierarchical);
}

// AMSP's trade-off is reversed: z copies of the state multiply the update by z and save only 2P(z -
// 1)/N of the gather.
TEST(Copies, OfTheStateMultiplyTheUpdateAndSaveLittleOfTheGather) {
    const Problem problem = seven_billion(64);
    Choice choice = usual(problem);
    const Terms one = cost_of(problem, choice).terms;
    for (const int copies : {2, 4, 64}) {
        SCOPED_TRACE(copies);
        choice.optimizer = {.gpus = 8, .nodes = 64 / copies};
        const Terms several = cost_of(problem, choice).terms;
        expect_close(several.csd, copies * one.csd);
        EXPECT_NEAR((one.gather - several.gather) * 25e9, 2 * 7e9 * (copies - 1) / 64, 1);
        EXPECT_GT(several.step, one.step);
    }
}

// AMSP's meshes for 7, 13 and 30 billion parameters on 128 x 8 GPUs: 2P/s_p + 2P/s_g in a GPU.
// AMSP's state, 12P/s_os, is on the devices here.
TEST(GpuBytes, HoldParametersAndGradientsAsInAmsp) {
    struct Mesher {
        double billions;
        int parameters, gradients;
        double gigabytes;
    };
    for (const Mesher& each : {Mesher{7, 1, 1, 28}, Mesher{13, 4, 4, 13}, Mesher{30, 8, 8, 15}}) {
        Problem problem = seven_billion(128);
        problem.work.model = {.parameters = static_cast<std::size_t>(each.billions * 1e9),
                              .largest_block = 0,
                              .blocks = 34};
        problem.work.checkpoint_bytes = 0;
        problem.work.working_bytes = 0;
        problem.work.state_bytes = 0;
        Choice choice = usual(problem);
        choice.state = StateHome::gpu;
        choice.order = Order::by_micro_batch;
        choice.parameters = {.gpus = each.parameters, .nodes = 1};
        choice.gradients = {.gpus = each.gradients, .nodes = 1};
        EXPECT_NEAR(gpu_bytes(problem, choice), each.gigabytes * 1e9, 1);
    }
}

// Two staged subgroups of 112e6 parameters with dense 16-bit gradients, beside all payloads.
TEST(DeviceBytes, HoldTwoSubgroupsAndAllPayloads) {
    Problem problem = seven_billion(1);
    Choice choice = usual(problem);
    problem.work.slots = 2;
    problem.site.csds = 1;
    choice.subgroup_tiles = 1716;
    const double staged = 2 * 1716 * 65536.0 * (12 + 2 + 2);
    expect_close(cost_of(problem, choice).demand.device, staged + 2 * 7e9, 1e-3);
}

TEST(DriveBytes, HoldTwoGenerations) {
    const Problem problem = seven_billion(1);
    expect_close(cost_of(problem, usual(problem)).demand.drive, 2 * 12 * 0.7e9, 1e-3);
}

TEST(Parameters, ShardedOverAllNodesCrossTheNetworkInEveryPass) {
    Problem problem = seven_billion(8);
    Choice choice = usual(problem);
    choice.order = Order::by_micro_batch;
    choice.gradients = choice.optimizer;
    choice.parameters = choice.optimizer;
    const double rounds = 8192.0 / 64 / 2;
    const Volumes volumes = cost_of(problem, choice).volumes;
    EXPECT_DOUBLE_EQ(volumes.network_parameters, 2 * rounds * 2 * (1 - 1.0 / 8));
    EXPECT_DOUBLE_EQ(volumes.network_gradients, rounds * 2 * (1 - 1.0 / 8));
    choice.order = Order::by_block;
    EXPECT_DOUBLE_EQ(cost_of(problem, choice).volumes.network_parameters, 2 * 2 * (1 - 1.0 / 8));
}

// 7e9 new parameters of 2 bytes go up.
TEST(HostLink, OfALimitedSumOfBothDirectionsBoundsTheUpdate) {
    Problem problem = seven_billion(1);
    problem.site.device_read = problem.site.device_write = 1e12;
    Choice choice = usual(problem);
    const Terms free = cost_of(problem, choice).terms;
    expect_close(free.opt - free.fill, 14 / 12.0);
    problem.site.host_link_total = 4e9;
    const Terms up = cost_of(problem, choice).terms;
    expect_close(up.opt - up.fill, 14 / 4.0);
    EXPECT_DOUBLE_EQ(replication_of(problem, choice, up).b_pcie, 4e9);
}

TEST(Step, IsAsLongAsItsPhasesLessTheOverlap) {
    for (const int nodes : {1, 8, 64, 1024}) {
        const Problem problem = seven_billion(nodes);
        const Terms t = cost_of(problem, usual(problem)).terms;
        EXPECT_NEAR(t.step, t.fwd + t.bwd + t.norm + t.opt - t.overlap, 1e-12);
        EXPECT_GE(t.overlap, 0);
        EXPECT_LE(t.overlap, std::min(t.fwd, t.opt));
        EXPECT_GE(t.opt, std::max({t.csd, t.up, t.gather, t.load}));
    }
}

// 7e9 parameters on one GPU of 10 TFLOP/s with 2 drives of 3.0 and 1.8 GB/s: 32 rows leave 17.7 GB
// of inputs, and half of 20 GB of host memory holds 10 of them.
TEST(Storage, ReadsParametersTwiceAndSpillsInputs) {
    Problem problem = seven_billion(1);
    problem.site.gpus = 1;
    problem.site.csds = 2;
    problem.site.gpu_operations = 10e12;
    problem.site.host_memory = 20e9;
    problem.work.master_bytes = 2;
    problem.work.sequences = 32;
    const double inputs = 32 * 2048 * 4096 * 2.0 * 33;
    Choice choice = usual(problem);
    choice.codec = Codec::q4;
    choice.home = Home::storage;
    ASSERT_TRUE(is_allowed(problem, choice));
    const Cost cost = cost_of(problem, choice);
    EXPECT_DOUBLE_EQ(cost.terms.fwd_load, std::max(14e9 / 6e9, (inputs - 10e9) / 3.6e9));
    EXPECT_DOUBLE_EQ(cost.terms.bwd_load,
                     std::max((14e9 + inputs) / 25e9, (14e9 + inputs - 10e9) / 6e9));
    EXPECT_EQ(cost.terms.up, 0);
    const double share = shard::tiles_of(7000000000) / 2 * 65536.0;
    EXPECT_NEAR(cost.demand.drive, 24 * share + (inputs - 10e9) / 2, 24 * 65536);
    EXPECT_NEAR(cost.demand.host, 2 * 2 * 210e6 + 10e9, 1e9);
    EXPECT_LT(cost.demand.gpu, inputs);
    EXPECT_NEAR(cost.volumes.device_read, 12 + 2 * 2 + (inputs - 10e9) / 7e9, 1e-9);
    EXPECT_NEAR(cost.volumes.device_write, 12 + (inputs - 10e9) / 7e9, 1e-9);
    for (const auto& spoil :
         {std::function<void(Problem&, Choice&)>([](Problem&p, Choice&) { p.nodes = 2; }),
          {[](Problem&p, Choice&) { p.site.gpus = 2; }},
          {[](Problem&, Choice&c) { c.order = Order::by_micro_batch; }},
          {[](Problem&, Choice&c) { c.gather = Gather::delta; }}}) {
        Problem other = problem;
        Choice spoiled = choice;
        spoil(other, spoiled);
        EXPECT_FALSE(is_allowed(other, spoiled));
    }
}

// State in 100 GB of memory at 50 GB/s: each pass reads the masters there.
TEST(Storage, ReadsParametersFromStateInMemory) {
    Problem problem = seven_billion(1);
    problem.site.gpus = 1;
    problem.site.csds = 2;
    problem.site.gpu_operations = 10e12;
    problem.site.host_memory = 100e9;
    problem.site.host_memory_rate = 50e9;
    problem.work.master_bytes = 2;
    problem.work.sequences = 32;
    problem.work.keeping = csd::Keeping::logged;
    problem.work.is_in_memory = true;
    const double inputs = 32 * 2048 * 4096 * 2.0 * 33;
    const double on_drives = inputs - (100e9 - 12 * 7e9) / 2;
    Choice choice = usual(problem);
    choice.codec = Codec::q4;
    choice.home = Home::storage;
    choice.shares = {.memory = 1};
    ASSERT_TRUE(is_allowed(problem, choice));
    const Cost logged = cost_of(problem, choice);
    EXPECT_DOUBLE_EQ(logged.terms.fwd_load,
                     std::max({inputs / 25e9, 14e9 / 50e9, on_drives / 3.6e9}));
    EXPECT_DOUBLE_EQ(logged.terms.bwd_load,
                     std::max((14e9 + inputs) / 25e9, 14e9 / 50e9 + on_drives / 6e9));
    problem.work.keeping = csd::Keeping::once;
    const Cost once = cost_of(problem, choice);
    EXPECT_EQ(once.demand.drive, 0);
    EXPECT_EQ(once.volumes.device_write, 0);
    EXPECT_GT(once.demand.host, 12 * 7e9 + inputs);
    choice.order = Order::by_micro_batch;  // with 16 passes of 2 rows
    EXPECT_FALSE(is_allowed(problem, choice));
    choice.sums = Sums::host;
    ASSERT_TRUE(is_allowed(problem, choice));
    const Cost passes = cost_of(problem, choice);
    EXPECT_DOUBLE_EQ(passes.terms.fwd_load, std::max(inputs / 25e9, 16 * 14e9 / 25e9));
    EXPECT_GT(passes.demand.host - once.demand.host, 4 * 7e9 - inputs * 15 / 16);
    choice = usual(problem);
    choice.codec = Codec::q4;
    choice.shares = {.memory = 1};
    choice.home = Home::host;  // which has a vector beside the state
    EXPECT_GT(cost_of(problem, choice).demand.host - (once.demand.host - inputs), 2 * 6.5e9);
}

}  // namespace
}  // namespace nearstep::plan
