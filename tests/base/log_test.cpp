// Tests what a process of many ranks writes to its log.
#include "base/log.hpp"

#include "base/number_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace nearstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Log, WritesAtMostEightLinesOfAnEvent) {
    testing::internal::CaptureStderr();
    for (int i = 0; i < 1000; ++i) {
        log_event("buffered_io", {{"file", "a b"}});
    }
    log_event("other");
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::ranges::count(said, '\n'), std::ptrdiff_t{kMostNamed} + 2);
    EXPECT_THAT(said, HasSubstr("nearstep event=more_left_out of=buffered_io\n"));
    EXPECT_THAT(said, HasSubstr("nearstep event=other\n"));
    EXPECT_THAT(silent_events(), ElementsAre("buffered_io"));
}

TEST(Log, OfRanksBehindTheFirstOnesIsKeptForOthers) {
    testing::internal::CaptureStderr();
    for (int rank = 0; rank < 1000; ++rank) {
        write_log_of(rank);
        log_event("io_uring_refused");
    }
    write_log_of(0);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::ranges::count(said, '\n'), std::ptrdiff_t{kMostNamed});
    EXPECT_THAT(silent_events(), testing::Contains("io_uring_refused"));
}

}  // namespace
}  // namespace nearstep
