// State in GPU memory: AMSP's costs and memories, computed by hand, and other systems as points of
// the space.
#include "plan/resident.hpp"

#include "plan/plan_search.hpp"
#include "plan/sample_problem.hpp"
#include "plan/systems.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace nearstep::plan {
namespace {

// 16 sequences for each of 8 GPUs in each node.
Problem with_nodes(int nodes) {
    Problem problem = seven_billion(nodes);
    problem.work.sequences = 128.0 * nodes;
    problem.work.micro_sequences = 1;
    problem.work.kept_bytes = 20e9;
    return problem;
}

// AMSP's for LLaMA-7B: only the state is sharded, over the node.
Choice usual() {
    Choice choice;
    choice.state = StateHome::gpu;
    choice.order = Order::by_micro_batch;
    choice.kept = Kept::all;
    choice.optimizer = {.gpus = 8, .nodes = 1};
    choice.collective = Collective::ring;
    choice.hidden = Hidden::none;
    return choice;
}

TEST(Resident, SumsOverAllCopiesAndBroadcastsInTheNode) {
    const Problem problem = with_nodes(4);
    const Terms terms = cost_of(problem, usual()).terms;
    const double forward = 16 * 2 * 7e9 * 2048 / 140e12;
    EXPECT_DOUBLE_EQ(terms.fwd, forward);
    EXPECT_DOUBLE_EQ(terms.scat, 2 * 14e9 * (1 - 1.0 / 32) / 25e9);  // a ring through 32 GPUs
    EXPECT_DOUBLE_EQ(terms.bwd, 2 * forward + terms.scat);
    EXPECT_DOUBLE_EQ(terms.load, 14e9 * 7 / 8 / 300e9);
    EXPECT_DOUBLE_EQ(terms.csd, 2 * 14 * 7e9 / 8 / 2e12);
    EXPECT_DOUBLE_EQ(terms.step, 3 * forward + terms.scat + terms.load + terms.csd);
}

TEST(Resident, GathersAndScattersEachMicroBatchOverTheMesh) {
    Problem problem = with_nodes(4);
    problem.site.layer_loss = 0.5;
    Choice choice = usual();
    choice.parameters = choice.gradients = choice.optimizer = {.gpus = 8, .nodes = 4};
    const double pass = 16 * 14e9 * (1 - 1.0 / 32) / 25e9 * 2.5;
    EXPECT_DOUBLE_EQ(cost_of(problem, choice).terms.fwd_load, pass);
    EXPECT_DOUBLE_EQ(cost_of(problem, choice).terms.reduce, pass);
    EXPECT_EQ(cost_of(problem, choice).terms.scat, 0);
    choice.again = Again::in_node;  // ZeRO++
    EXPECT_DOUBLE_EQ(cost_of(problem, choice).terms.bwd_load, 16 * 14e9 * 7 / 8 / 300e9);
    EXPECT_DOUBLE_EQ(cost_of(problem, choice).terms.fwd_load, pass);
    choice.collective = Collective::hierarchical;  // each node gets what other nodes have
    EXPECT_DOUBLE_EQ(cost_of(problem, choice).terms.fwd_load, 16 * 14e9 * 3 / 4 / 25e9 * 2.5);
}

TEST(Resident, HidesMoreTheMoreIsAsked) {
    const Problem problem = with_nodes(4);
    Choice choice = usual();
    choice.parameters = choice.gradients = {.gpus = 8, .nodes = 1};
    double before = 0;
    for (const Hidden hidden :
         {Hidden::all, Hidden::but_backward, Hidden::but_update, Hidden::none}) {
        choice.hidden = hidden;
        // Parameters are as widely sharded as the state, so that nothing is broadcast.
        EXPECT_GE(cost_of(problem, choice).terms.step, before) << name_of(hidden);
        before = cost_of(problem, choice).terms.step;
    }
    const Terms none = cost_of(problem, choice).terms;
    choice.hidden = Hidden::but_update;
    EXPECT_LT(cost_of(problem, choice).terms.step, none.step - none.fwd_load);
}

TEST(Resident, NeedsTwoTwoAndTwelveBytesOverTheMeshes) {
    const Problem problem = with_nodes(4);
    const Demand demand = cost_of(problem, usual()).demand;
    const double buffers = 2 * 4 * 210e6;
    EXPECT_DOUBLE_EQ(demand.gpu, 14e9 + 14e9 + 12 * 7e9 / 8 + 20e9 + buffers);
    EXPECT_EQ(demand.host + demand.device + demand.drive, 0);
}

TEST(Resident, IsSearchedAsEveryChoiceSays) {
    for (const int nodes : {1, 4}) {
        for (const double memory : {80e9, 40e9, 10e9}) {
            for (const Hidden hidden : {Hidden::all, Hidden::none}) {
                Problem problem = with_nodes(nodes);
                problem.site.gpu_memory = memory;
                problem.site.bulk_loss = 0.02;
                Space space = resident_space_of(problem);
                space.hidden = hidden;
                const SearchResult fast = search(problem, space);
                const SearchResult plain = search_plainly(problem, space);
                ASSERT_EQ(fast.plan.has_value(), plain.plan.has_value());
                EXPECT_EQ(fast.plan.has_value(), memory > 20e9 || nodes == 4) << memory;
                EXPECT_DOUBLE_EQ(fast.shortest_s, plain.shortest_s);
                if (fast.plan) {
                    EXPECT_EQ(fast.plan->choice, plain.plan->choice);
                }
            }
        }
    }
}

TEST(Systems, ArePointsOfTheSpaceThatItsFastestBeat) {
    const std::vector<SystemRow> rows = systems_of(with_nodes(4), {Codec::dense, Codec::q4}, {});
    const auto of = [&](const std::string& name) {
        return std::ranges::find(rows, name, &SystemRow::system)->found;
    };
    const Mesh all = {.gpus = 8, .nodes = 4};
    EXPECT_EQ(of("ZeRO-1").plan->choice.optimizer, all);
    EXPECT_EQ(of("ZeRO-1").plan->choice.gradients, Mesh{});
    EXPECT_EQ(of("ZeRO-2").plan->choice.gradients, all);
    EXPECT_EQ(of("ZeRO-3").plan->choice.parameters, all);
    EXPECT_EQ(of("MiCS").plan->choice.parameters, of("MiCS").plan->choice.optimizer);
    const double ours = of("nearstep, state in GPU memory").shortest_s;
    for (const SystemRow& row : rows) {
        ASSERT_TRUE(row.found.plan) << row.system;
        EXPECT_TRUE(is_allowed(row.problem, row.found.plan->choice)) << row.system;
        if (row.found.plan->choice.state == StateHome::gpu) {
            EXPECT_GE(row.found.shortest_s * (1 + kMargin), ours) << row.system;
        }
    }
    const std::vector<SystemRow> asked =
        systems_of(with_nodes(4), {Codec::dense}, {.meshes = {4, 4, 16}});
    const SearchResult published =
        std::ranges::find(asked, std::string("AMSP"), &SystemRow::system)->found;
    EXPECT_EQ(published.plan->choice.gradients, (Mesh{.gpus = 4, .nodes = 1}));
    EXPECT_EQ(published.plan->choice.optimizer, (Mesh{.gpus = 8, .nodes = 2}));
}

}  // namespace
}  // namespace nearstep::plan
