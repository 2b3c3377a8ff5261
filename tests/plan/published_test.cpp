// Compares the planner's formulas with those of published papers.
#include "plan/published.hpp"

#include "plan/sample_problem.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nearstep::plan {
namespace {

TEST(PaperBytes, OfOneNodeAreThoseOfTableOne) {
    EXPECT_DOUBLE_EQ(paper_bytes(Method::zero_infinity, 0, 1).total(), 16 + 16);
    EXPECT_DOUBLE_EQ(paper_bytes(Method::smart_update, 0, 1).total(), 4 + 4);
    EXPECT_DOUBLE_EQ(paper_bytes(Method::smart_comp, 0.02, 1).total(), 4 + 0.08);
    EXPECT_DOUBLE_EQ(paper_bytes(Method::smart_comp, 1, 1).total(),
                     paper_bytes(Method::smart_update, 0, 1).total());
}

TEST(PaperBytes, OfMoreNodesHaveTheSameHostLinksAndANetwork) {
    for (const Method method : {Method::zero_infinity, Method::smart_update, Method::smart_comp}) {
        EXPECT_EQ(paper_bytes(method, 0.02, 1).network, 0);
        EXPECT_EQ(paper_bytes(method, 0.02, 5).host_link, paper_bytes(method, 0.02, 1).host_link);
    }
    EXPECT_DOUBLE_EQ(paper_bytes(Method::zero_infinity, 0, 5).network, 4 * 6);
    EXPECT_DOUBLE_EQ(paper_bytes(Method::smart_update, 0, 5).network, 4 * 4);
    EXPECT_DOUBLE_EQ(paper_bytes(Method::smart_comp, 0.02, 5).network, 4 * 2.08);
}

TEST(Replication, HasTheNumbersComputedByHand) {
    const Problem problem = seven_billion(1);
    const Replication formula = replication_of(problem, usual(problem), {.fwd = 2, .bwd = 6});
    EXPECT_EQ(formula.n, 10);
    EXPECT_NEAR(formula.opt, 7e9 * 12 / 1.8e9, 1e-9);  // writing is slowest
    EXPECT_NEAR(formula.param_swap, 7e9 * 2 / 3.0e9, 1e-9);
    EXPECT_NEAR(formula.opt_n, formula.opt / 10, 1e-9);  // 4.67 s, above 4.67 / 4
    EXPECT_NEAR(formula.total_n, 8 + formula.opt_n, 1e-9);
}

TEST(Replication, EndsWhereTheHostLinkIsFull) {
    Problem problem = seven_billion(1);
    problem.site.csds = 100;
    const Replication formula = replication_of(problem, usual(problem), {});
    EXPECT_NEAR(formula.opt_n, formula.param_swap / (12.0 / 3.0), 1e-9);
}

TEST(Replication, IsOfOneNodesShare) {
    const Problem one = seven_billion(1);
    const Problem eight = seven_billion(8);
    EXPECT_NEAR(replication_of(one, usual(one), {}).opt,
                8 * replication_of(eight, usual(eight), {}).opt, 1e-6);
}

TEST(Replication, IsPrintedWithItsSymbols) {
    const Problem problem = seven_billion(1);
    const std::string text =
        describe(replication_of(problem, usual(problem), {.fwd = 2, .bwd = 6}));
    EXPECT_THAT(text, testing::HasSubstr(
                          "T_opt,n = max(T_opt / n, T_param_swap / min(n, B_PCIe / B_SSD)) = max("
                          "46.7 s / 10, 4.67 s / min(10, 12 GB/s / 3.0 GB/s)) = 4.67 s"));
    EXPECT_THAT(text, testing::HasSubstr(
                          "T_total,n = T_fwd + T_bwd + T_opt,n = 2 s + 6 s + 4.67 s = 12.7 s"));
}

}  // namespace
}  // namespace nearstep::plan
