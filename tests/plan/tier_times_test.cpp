// How a plan divides the state among GPU memory, host memory and drives.
#include "plan/tier_times.hpp"

#include "plan/plan_search.hpp"
#include "plan/sample_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace nearstep::plan {
namespace {

constexpr double kOnceOfRank = 12 * 7e9 / 8;
constexpr double kStateOfRank = 2 * kOnceOfRank;  // two generations
const config::Tiers kAnyGpu{.gpu = std::nullopt};
const config::Tiers kAnyMemory{.memory = std::nullopt};
const config::Tiers kAnything{.gpu = std::nullopt, .memory = std::nullopt};

// The state of one copy over all drives, of a step with so many sequences.
Problem problem_with(double sequences) {
    Problem problem = seven_billion(1);
    problem.work.sequences = sequences;
    problem.work.micro_sequences = 1;
    problem.site.device_updates = 550e6;
    return problem;
}

Choice of_one_node() {
    Choice choice;
    choice.home = Home::host;
    choice.gradients = choice.optimizer = {.gpus = 8, .nodes = 1};
    return choice;
}

Cost cost_with(const Problem& problem, const config::Tiers& asked) {
    Choice choice = of_one_node();
    choice.shares = best_shares(problem, choice, asked);
    return cost_of(problem, choice);
}

TEST(Tiers, TakeTheSecondsComputedByHand) {
    Problem problem = problem_with(8);
    Choice choice = of_one_node();
    choice.shares = {.gpu = 0.25, .memory = 0.5};
    const Terms t = cost_of(problem, choice).terms;
    // 2 bytes of gradient and parameter per link direction outlast reads and writes of the GPU.
    EXPECT_NEAR(t.gpu, 0.25 * 7e9 / 8 * 2 / 25e9, 1e-9);
    // All ranks together reach the host memory's rate.
    EXPECT_NEAR(t.memory, 0.5 * 7e9 * 2 * 12 / 200e9, 1e-9);
    problem.site.host_memory_rate = 0;
    EXPECT_NEAR(cost_of(problem, choice).terms.memory, 0.5 * 7e9 / 8 / (550e6 + 25e9 / 12), 1e-9);
    EXPECT_NEAR(t.csd, 0.25 * 7e9 / 10 * 12 / 1.8e9, 1e-3);
    const config::TierBytes bytes = tier_bytes(problem, choice);
    EXPECT_NEAR(bytes.gpu, 0.25 * kOnceOfRank, 1);
    EXPECT_NEAR(bytes.memory, 0.5 * kStateOfRank, 1);
    EXPECT_NEAR(bytes.drive, 0.25 * kStateOfRank, 1);
    const Demand on_drives = cost_of(problem, of_one_node()).demand;
    const Demand demand = cost_of(problem, choice).demand;
    EXPECT_NEAR(demand.gpu - on_drives.gpu, bytes.gpu, 1);
    EXPECT_NEAR(demand.host - on_drives.host, 8 * bytes.memory, 1);
    EXPECT_NEAR(demand.drive / on_drives.drive, 0.25, 1e-3);
}

TEST(Shares, AreThoseAskedFor) {
    const Problem problem = problem_with(8);
    EXPECT_EQ(best_shares(problem, of_one_node(), {}), Shares{});
    const Shares shares = best_shares(problem, of_one_node(),
                                      {.gpu = kOnceOfRank / 10e9, .memory = kStateOfRank / 4e9});
    EXPECT_NEAR(shares.gpu, 0.1, 1e-12);
    EXPECT_NEAR(shares.memory, 0.25, 1e-12);
    EXPECT_EQ(best_shares(problem, of_one_node(), {.gpu = kOnceOfRank}).gpu, 1);
}

TEST(Shares, LetTiersEndTogether) {
    Terms t = cost_with(problem_with(8), kAnyMemory).terms;
    EXPECT_NEAR(t.memory / t.csd, 1, 0.01);
    EXPECT_GT(t.memory, 0);
    t = cost_with(problem_with(8), kAnything).terms;
    EXPECT_NEAR(t.memory / t.csd, 1, 0.01);
    // The GPU works on its part before the next forward, all of whose blocks but one follow it.
    EXPECT_NEAR((t.gpu + t.fwd_gpu * 33 / 34) / t.csd, 1, 0.01);
}

TEST(Shares, EndWhereHalfOfAMemoryIsTaken) {
    Problem problem = problem_with(8);
    const Demand demand = cost_of(problem, of_one_node()).demand;
    problem.site.host_memory = demand.host + 8 * 4e9;
    problem.site.gpu_memory = demand.gpu + 2e9;
    const Shares shares = best_shares(problem, of_one_node(), kAnything);
    EXPECT_NEAR(shares.memory * kStateOfRank, 2e9, 1);
    EXPECT_NEAR(shares.gpu * kOnceOfRank, 1e9, 1);
    problem.site.gpu_memory = demand.gpu;  // what the activations need
    EXPECT_EQ(best_shares(problem, of_one_node(), kAnyGpu).gpu, 0);
}

TEST(Shares, LeaveToDrivesWhatTheForwardHides) {
    const Problem problem = problem_with(512);
    EXPECT_GT(cost_of(problem, of_one_node()).terms.fwd_gpu, 10);
    EXPECT_EQ(best_shares(problem, of_one_node(), kAnyGpu), Shares{});
}

Plan plan_with(const Problem& problem, const config::Tiers& asked) {
    Space space = space_of_program(problem, {Codec::dense});
    space.tiers = tiers_of(asked);
    return *search(problem, space).plan;
}

TEST(Plan, KeepsTheStateOnDrivesWhereOtherTiersShortenNothing) {
    EXPECT_EQ(plan_with(problem_with(512), kAnything).choice.shares, Shares{});
}

// With GPU memory beside what `memory` uses.
void expect_gpus_shorten(const Problem& problem, const Plan& memory) {
    const Plan both = plan_with(problem, kAnything);
    EXPECT_GT(both.choice.shares.gpu, 0);
    EXPECT_LT(both.cost.terms.step, 0.9 * memory.cost.terms.step);
}

TEST(Plan, TakesTiersThatShortenTheStep) {
    const Problem problem = problem_with(8);
    const double on_drives = plan_with(problem, {}).cost.terms.step;
    const Plan memory = plan_with(problem, kAnyMemory);
    EXPECT_GT(memory.choice.shares.memory, 0.5);
    EXPECT_LT(memory.cost.terms.step, 0.5 * on_drives);
    expect_gpus_shorten(problem, memory);
}

TEST(Plan, TakesMemoryOfGpusBesideStorageNodes) {
    Problem problem = problem_with(8);
    problem.storage_nodes = 1;
    const Plan memory = plan_with(problem, kAnyMemory);
    EXPECT_GT(memory.choice.shares.memory, 0);
    expect_gpus_shorten(problem, memory);
}

// 8 nodes that compute get what one storage node sends 8 times.
TEST(Shares, OfGpusSpareTheNetworkOfStorageNodes) {
    Problem problem = problem_with(64);
    problem.nodes = 8;
    problem.storage_nodes = 1;
    problem.site.csds = 1000;
    Choice choice = of_one_node();
    choice.optimizer.nodes = 8;
    const Terms stored = cost_of(problem, choice).terms;
    EXPECT_NEAR(stored.gather, 8 * 14e9 / 25e9, 1e-9);
    choice.shares = best_shares(problem, choice, kAnyGpu);
    EXPECT_GT(choice.shares.gpu, 0);
    const Terms t = cost_of(problem, choice).terms;
    const double sent_s = (1 - choice.shares.gpu) * stored.gather;
    EXPECT_NEAR((t.gpu + t.fwd_gpu * 33 / 34) / sent_s, 1, 0.01);
    EXPECT_NEAR(t.gather, (1 - choice.shares.gpu / 8) * 14e9 / 25e9, 1e-9) << "what a node gets";
    EXPECT_LT(t.step, stored.step);
}

TEST(Alternatives, SayWhatOtherTiersWouldBring) {
    const Problem problem = problem_with(8);
    const Space space = space_of_program(problem, {Codec::dense});
    const Plan plan = *search(problem, space).plan;
    const std::vector<Alternative> others = alternatives_to(plan, problem, space);
    const auto best = std::ranges::find(others, std::string_view("tiers"), &Alternative::field);
    ASSERT_NE(best, others.end());
    EXPECT_LT(best->found.plan->cost.terms.step, plan.cost.terms.step);
    EXPECT_NE(best->value.find(" in host memory + "), std::string::npos) << best->value;
}

}  // namespace
}  // namespace nearstep::plan
