// Tests the spans of a timeline, and their sums.
#include "trace/timeline.hpp"

#include "support/test.hpp"

namespace nearstep::trace {
namespace {

using std::chrono::microseconds;

TEST(TimelineOf, WritesSpansWithTheirLaneStepAndSubject) {
    Timeline timeline;
    timeline.set_origin();
    const auto begin = Timeline::Clock::now();
    timeline.begin_step(8);
    timeline.begin_update(7);
    timeline.add(Lane::engine, "update", {.kind = "subgroup", .number = 3, .device = 1}, begin,
                 begin + microseconds(1500));
    timeline.add(Lane::compute, "forward", {}, begin, begin + microseconds(250));
    const std::string events = timeline.events(2);
    EXPECT_THAT(events, HasSubstr(R"("name":"update","cat":"engine","pid":2,"tid":16)"));
    EXPECT_THAT(events, HasSubstr(R"("dur":1500.000,"args":{"step":7,"subgroup":3}})"));
    EXPECT_THAT(events, HasSubstr(R"("dur":250.000,"args":{"step":8}})"));
    EXPECT_THAT(events, HasSubstr(R"("tid":16,"args":{"name":"engine 1"})"));
    EXPECT_THAT(events, HasSubstr(R"("tid":0,"args":{"name":"compute"})"));
    EXPECT_THAT(events, Not(HasSubstr("device read")));
}

TEST(TimelineOf, SumsTheWorkOfALane) {
    Timeline timeline;
    const auto begin = Timeline::Clock::now();
    for (const int device : {0, 1}) {
        timeline.add(Lane::device_read, "read", {.device = device}, begin,
                     begin + microseconds(500));
    }
    const auto busy = timeline.busy_seconds();
    EXPECT_DOUBLE_EQ(busy.at(static_cast<std::size_t>(Lane::device_read)), 1e-3);
    EXPECT_EQ(busy.at(static_cast<std::size_t>(Lane::engine)), 0);
}

TEST(TimelineOf, CountsWhatHasNoRoomFromAnyThread) {
    Timeline timeline(100);
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&timeline] {
            for (int i = 0; i < 50; ++i) {
                const Span span(&timeline, Lane::engine, "update");
            }
        });
    }
    threads.clear();
    EXPECT_EQ(timeline.spans(), 100U);
    EXPECT_EQ(timeline.left_out(), 100U);
}

TEST(SpanOf, IsNothingWithoutATimeline) {
    EXPECT_NO_THROW(Span(nullptr, Lane::compute, "forward"));
}

}  // namespace
}  // namespace nearstep::trace
