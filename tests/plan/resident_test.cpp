// State in GPU memory: AMSP's costs and memories, computed by hand, and other systems as points of
// the space.
#include "plan/resident.hpp"

#include "plan/named_choice.hpp"
#include "plan/plan_search.hpp"
#include "plan/sample_problem.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

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

NamedChoice choice_of(const std::string& lines) {
    const ScratchFolder folder;
    return read_choice(folder.write("choice.toml", "name = \"one\"\nstate = \"gpu\"\n" + lines));
}

SearchResult found_of(const std::string& lines) {
    return plan_for(with_nodes(4), choice_of(lines), {Codec::dense}).found;
}

TEST(NamedChoice, FixesAPartAndTakesTheFastestOfTheRest) {
    const Mesh all = {.gpus = 8, .nodes = 4};
    const SearchResult fastest = found_of("");
    for (const auto& [name, parameters, gradients] :
         {std::tuple{"zero-1", Mesh{}, Mesh{}}, {"zero-2", Mesh{}, all}, {"zero-3", all, all}}) {
        const NamedChoice named = read_choice(
            test::source_file(text("cluster/experiments/llama.choices/", name, ".toml")));
        const Row row = plan_for(with_nodes(4), named, {Codec::dense});
        ASSERT_TRUE(row.found.plan) << name;
        const Choice& choice = row.found.plan->choice;
        EXPECT_TRUE(is_allowed(row.problem, choice)) << name;
        EXPECT_EQ(std::tuple(choice.parameters, choice.gradients, choice.optimizer),
                  std::tuple(parameters, gradients, all));
        EXPECT_GE(row.found.shortest_s * (1 + kMargin), fastest.shortest_s) << name;
    }
    const Choice group = found_of(
                             "parameters = \"group\"\ngradients = \"group\"\n"
                             "optimizer = \"group\"\n")
                             .plan->choice;
    EXPECT_EQ(group.parameters, group.optimizer);
    EXPECT_GT(group.optimizer.size(), 1);
    const Choice ranks = found_of("parameters = 4\ngradients = 4\noptimizer = 16\n").plan->choice;
    EXPECT_EQ(ranks.gradients, (Mesh{.gpus = 4, .nodes = 1}));
    EXPECT_EQ(ranks.optimizer, (Mesh{.gpus = 8, .nodes = 2}));
}

TEST(NamedChoice, IsRankedAndTimedWithWhatItSays) {
    const SearchResult ranked = found_of("ranked = \"none\"\nhidden = \"but update\"\n");
    EXPECT_EQ(ranked.plan->choice.hidden, Hidden::but_update);
    EXPECT_EQ(ranked.shortest_s, ranked.plan->cost.terms.step);
    EXPECT_LT(ranked.shortest_s, found_of("hidden = \"none\"\n").shortest_s);
    EXPECT_EQ(found_of("again = \"in node\"\n").plan->choice.again, Again::in_node);
}

TEST(NamedChoice, WrongFilesAreRefused) {
    const std::pair<const char*, const char*> cases[] = {
        {"hidden = \"most\"", "but update"}, {"optimizer = 0", "number of ranks"},
        {"optimizer = \"some\"", "group"},   {"codecs = \"q4\"", "the keys are"},
        {"order = 3", "quotation marks"},    {"[hidden]", "quotation marks"},
        {"name = \"two\"", "TOML"}};
    for (const auto& [line, words] : cases) {
        EXPECT_THAT(message_of([&, at = line] { choice_of(at); }), HasSubstr(words)) << line;
    }
    EXPECT_THAT(message_of([] { found_of("parameters = 8\noptimizer = 4\n"); }),
                HasSubstr("fit together"));
}

}  // namespace
}  // namespace nearstep::plan
