// Compares the search with the cost of every choice.
#include "plan/plan_search.hpp"

#include "plan/sample_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace nearstep::plan {
namespace {

const std::vector<Codec> kAllCodecs = {Codec::dense, Codec::q8, Codec::q4, Codec::topk};

bool holds(const std::vector<Mesh>& meshes, const Mesh& mesh) {
    return std::find(meshes.begin(), meshes.end(), mesh) != meshes.end();
}

// Small problems, each with another scarce resource.
std::vector<std::pair<std::string, Problem>> small_problems() {
    std::vector<std::pair<std::string, Problem>> problems;
    for (const int nodes : {1, 2, 6}) {
        const auto add = [&](const std::string& name, const auto& change) {
            Problem problem = seven_billion(nodes);
            problem.site.gpus = 4;
            change(problem);
            problems.emplace_back(name + " of " + std::to_string(nodes), problem);
        };
        const auto slow = [](Problem& problem) {
            problem.site.network = 1e9;
            problem.site.latency_s = 5e-6;
        };
        add("plenty", [](Problem&) {});
        add("little memory", [](Problem& tight) {
            tight.site.gpu_memory = 12e9;
            tight.site.device_memory = 1e9;
        });
        add("slow network", slow);
        add("little host memory", [](Problem& poor) {
            poor.site.host_memory = 16e9;
            poor.site.device_memory = 0.3e9;
        });
        add("full drives", [](Problem& none) { none.site.device_capacity = 1e9; });
        add("one GPU", [](Problem& small) {
            small.site.gpus = 1;
            small.site.host_memory = 10e9;
            small.site.gpu_memory = 12e9;
            small.work.sequences = 16;
        });
        add("serial devices", [](Problem& serial) {
            serial.work.is_serial = true;
            serial.site.gpu_operations *= 20;
        });
        add("storage nodes", [&](Problem& apart) {
            slow(apart);
            apart.storage_nodes = 2;
            apart.site.csds_beside = nodes == 6 ? 1 : 0;
            apart.work.sequences = 64;
        });
    }
    return problems;
}

TEST(Search, FindsWhatTheCostOfEveryChoiceSays) {
    std::size_t left_out = 0;
    for (const auto& [name, problem] : small_problems()) {
        SCOPED_TRACE(name);
        Space space = space_of(problem, kAllCodecs);
        const bool has_tiers = name == "one GPU of 1" || name == "full drives of 1" ||
                               name.starts_with("storage nodes");
        if (has_tiers) {
            space.tiers = tiers_of({.gpu = std::nullopt, .memory = std::nullopt});
        }
        const SearchResult fast = search(problem, space);
        const SearchResult plain = search_plainly(problem, space);
        ASSERT_EQ(fast.plan.has_value(), plain.plan.has_value());
        EXPECT_EQ(fast.plan.has_value(),
                  has_tiers || name.find("full drives") == std::string::npos);
        EXPECT_DOUBLE_EQ(fast.shortest_s, plain.shortest_s);
        if (fast.plan) {
            EXPECT_EQ(fast.plan->choice, plain.plan->choice);
            EXPECT_TRUE(does_fit(fast.plan->cost.demand, problem.site));
            EXPECT_LE(fast.plan->cost.terms.step, fast.shortest_s * (1 + kMargin));
            EXPECT_LT(fast.costed, plain.costed);
            left_out += plain.costed - fast.costed;
        } else {
            EXPECT_EQ(fast.misfit->memory, "drive");
            EXPECT_GT(fast.misfit->ratio(), 1);
        }
    }
    EXPECT_GT(left_out, 0U);
}

// Checks the bounds of `choice` against its cost. Its optimizer mesh is not the finest.
void expect_bounded(const Problem& problem, const Choice& choice) {
    const double step = cost_of(problem, choice).terms.step * (1 + 1e-12);
    EXPECT_LE(least_seconds(problem, choice, Known::with_optimizer), step);
    Choice finest = choice;
    finest.optimizer = {.gpus = problem.site.gpus, .nodes = problem.nodes};
    EXPECT_LE(least_seconds(problem, finest, Known::before_optimizer), step);
}

TEST(Search, HasBoundsThatNoChoiceIsBelow) {
    for (const auto& [name, problem] : small_problems()) {
        SCOPED_TRACE(name);
        const Space space = space_of(problem, kAllCodecs);
        Choice choice;
        choice.codec = Codec::topk;
        for (const Mesh& optimizer : space.optimizers) {
            choice.optimizer = optimizer;
            for (const Mesh& gradients : space.gradients) {
                choice.gradients = gradients;
                for (const Order order : space.orders) {
                    choice.order = order;
                    if (is_allowed(problem, choice)) {
                        expect_bounded(problem, choice);
                    }
                }
            }
        }
    }
}

// AMSP at 128 x 8 GPUs: the space contains ZeRO-1, ZeRO-3, MiCS and AMSP's own meshes.
TEST(Space, HoldsThePlacementsThatAmspNames) {
    const Problem problem = seven_billion(128);
    const std::vector<Mesh> meshes = meshes_of(problem);
    EXPECT_EQ(meshes.size(), 4U + 7U);  // divisors of 8, and 2, 4, ..., 128 whole nodes
    struct Named {
        Mesh parameters, gradients, optimizer;
    };
    for (const Named& each : {Named{{1, 1}, {1, 1}, {8, 128}}, Named{{8, 128}, {8, 128}, {8, 128}},
                              Named{{8, 1}, {8, 1}, {8, 1}}, Named{{1, 1}, {1, 1}, {8, 1}},
                              Named{{4, 1}, {4, 1}, {8, 1}}, Named{{8, 1}, {8, 1}, {8, 4}}}) {
        EXPECT_TRUE(holds(meshes, each.parameters) && holds(meshes, each.gradients) &&
                    holds(meshes, each.optimizer));
        Choice choice;
        choice.parameters = each.parameters;
        choice.gradients = each.gradients;
        choice.optimizer = each.optimizer;
        EXPECT_TRUE(is_allowed(problem, choice));
    }
}

TEST(Space, ShardsStateAtLeastAsFinelyAsGradientsAndTheseAsParameters) {
    const Problem problem = seven_billion(4);
    Choice choice;
    choice.optimizer = {.gpus = 8, .nodes = 1};
    choice.gradients = {.gpus = 8, .nodes = 4};
    EXPECT_FALSE(is_allowed(problem, choice));
    choice.optimizer = choice.gradients;
    EXPECT_TRUE(is_allowed(problem, choice));
    choice.gradients = {.gpus = 1, .nodes = 1};
    choice.parameters = {.gpus = 8, .nodes = 1};
    EXPECT_FALSE(is_allowed(problem, choice));
    choice.gradients = {.gpus = 8, .nodes = 1};
    EXPECT_TRUE(is_allowed(problem, choice));
    choice.scatter = Scatter::flat;
    EXPECT_FALSE(is_allowed(problem, choice)) << "every GPU encodes the whole gradient";
}

// AMSP finds the opposite for state in GPUs.
TEST(Plan, AlwaysSpreadsTheStateOverAllDevices) {
    for (const int nodes : {1, 4, 16}) {
        const Problem problem = seven_billion(nodes);
        const SearchResult found = search(problem, space_of(problem, {Codec::dense, Codec::q4}));
        ASSERT_TRUE(found.plan);
        EXPECT_EQ(found.plan->choice.optimizer, (Mesh{.gpus = 8, .nodes = nodes}));
    }
}

TEST(Plan, ShardsParametersOnlyWhereGpusAreTooSmall) {
    Problem problem = seven_billion(4);
    problem.work.sequences = 256;
    const std::vector<Codec> codecs = {Codec::dense};
    const SearchResult roomy = search(problem, space_of(problem, codecs));
    ASSERT_TRUE(roomy.plan);
    EXPECT_EQ(roomy.plan->choice.parameters, Mesh());
    EXPECT_EQ(roomy.plan->choice.home, Home::gpu);
    problem.site.gpu_memory = 12e9;
    const SearchResult tight = search(problem, space_of(problem, codecs));
    ASSERT_TRUE(tight.plan);
    EXPECT_TRUE(tight.plan->choice.parameters != Mesh() || tight.plan->choice.home == Home::host);
}

TEST(Plan, TakesTheDeltaOnlyWhereTheNetworkBinds) {
    const Problem few = seven_billion(1);
    EXPECT_EQ(search(few, space_of(few, {Codec::dense})).plan->choice.gather, Gather::dense);
    Problem many = seven_billion(64);
    many.site.network = 5e9;
    many.site.gpu_operations *= 20;
    const Choice choice = search(many, space_of(many, {Codec::dense})).plan->choice;
    EXPECT_EQ(choice.gather, Gather::delta);
    EXPECT_EQ(worths_of(many, choice).front().resource, "network");
}

// With more rows, the network keeps fewer layers, and at last the inputs wait on the host.
TEST(Plan, KeepsWhatFits) {
    Problem problem = seven_billion(8);
    problem.site.gpu_memory = 40e9;
    const auto plan_with = [&](double rows) {
        problem.work.sequences = rows * problem.ranks();
        return *search(problem, space_of_program(problem, {Codec::dense})).plan;
    };
    EXPECT_EQ(plan_with(1).choice.kept, Kept::all);
    const Plan most = plan_with(8);
    EXPECT_EQ(most.choice.kept, Kept::most);
    EXPECT_NEAR(most.cost.demand.gpu, 40e9, 1);
    // A row's inputs of all blocks are 0.554 GB, and its layers keep 7 GB. 16 GB are parameters,
    // gradients of two blocks and the work of a block with 2 rows.
    const double share = (40e9 - 14e9 - 8 * 210e6 - 2e9 - 8 * 0.5536e9) / (8 * 7e9);
    EXPECT_NEAR(most.cost.terms.bwd_gpu / most.cost.terms.fwd_gpu, 3 - share, 1e-3);
    const Plan host = plan_with(64);
    EXPECT_EQ(host.choice.inputs, Inputs::host);
    const double inputs = 64 * problem.work.checkpoint_bytes;
    EXPECT_NEAR(host.cost.terms.fwd_load, std::max(inputs / 25e9, 14e9 / 25e9), 1e-6);
    EXPECT_GT(host.cost.demand.host, 8 * inputs);
    problem.site.gpu_memory = 30e9;
    problem.site.host_memory = 100e9;
    EXPECT_FALSE(search(problem, space_of_program(problem, {Codec::dense})).plan);
}

// Every client's best plan is in the space, and the best of all clients is the plan.
TEST(Plan, IsTheBestOfAllClients) {
    Problem problem = seven_billion(8);
    problem.work.sequences = 1024;
    Space space = space_of(problem, {Codec::dense});
    const Plan best = *search(problem, space).plan;
    EXPECT_EQ(client_of(problem, best.choice, space.clients), Client::python);
    EXPECT_EQ(best.choice.kept, Kept::all);
    EXPECT_EQ(best.choice.sums, Sums::gpu);
    const Plan program = *search(problem, space_of_program(problem, {Codec::dense})).plan;
    EXPECT_EQ(client_of(problem, program.choice, space.clients), Client::program);
    EXPECT_GT(program.cost.terms.step, best.cost.terms.step);
    // Sums that have no room on the GPU wait on the host: 4 bytes each, and half of a pass's
    // gradients.
    problem.site.gpu_memory = 48e9;
    problem.site.host_memory_rate = 0;
    space.clients = {Client::python};
    space.kept = {Kept::all};
    const Plan less = *search(problem, space).plan;
    EXPECT_EQ(less.choice.sums, Sums::host);
    EXPECT_NEAR(less.cost.demand.gpu, 48e9, 1);
    // Two rows keep 14 GB, beside parameters and gradients of two blocks.
    const double share = 1 - (48e9 - 14e9 - 14e9 - 8 * 210e6) / 28e9;
    EXPECT_NEAR(less.cost.demand.host - 8 * share * 5 * 7e9, 14e9, 5e9);
    EXPECT_NEAR(less.cost.terms.reduce, (1024 / 64 / 2 - 1) * share * 14e9 / 25e9, 1e-6);
}

TEST(Alternatives, LoseAgainstThePlanAndSayWhere) {
    const Problem problem = seven_billion(8);
    const Space space = space_of(problem, {Codec::dense, Codec::q4});
    const Plan plan = *search(problem, space).plan;
    const std::vector<Alternative> alternatives = alternatives_to(plan, problem, space);
    EXPECT_GE(alternatives.size(), 10U);
    for (const Alternative& each : alternatives) {
        SCOPED_TRACE(std::string(each.field) + " " + each.value);
        ASSERT_TRUE(each.found.plan || each.found.misfit);
        if (each.found.plan && each.field != "tiers") {
            EXPECT_GE(each.found.plan->cost.terms.step * (1 + kMargin), plan.cost.terms.step);
        }
        if (each.field == "optimizer") {
            EXPECT_EQ(longest_excess(plan.cost.terms, each.found.plan->cost.terms), "T_csd");
        }
    }
}

}  // namespace
}  // namespace nearstep::plan
