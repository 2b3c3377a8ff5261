#include "plan/paper.hpp"

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

}  // namespace
}  // namespace nearstep::plan
