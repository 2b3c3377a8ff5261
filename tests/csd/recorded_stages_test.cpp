// Tests that a device that records its spans has the same bits, and a span for each subgroup.
#include "csd/device_fixture.hpp"
#include "support/test.hpp"

#include <regex>

namespace nearstep::csd {
namespace {

constexpr int kSteps = 3;

struct ReadOrWrite {
    double begin = 0;
    double end = 0;
};

// The spans with this name, in the order of their ends.
std::vector<ReadOrWrite> spans_of(const std::string& events, const std::string& name) {
    const std::regex pattern(R"x("name":")x" + name + R"x(".*"ts":([-0-9.]+),"dur":([0-9.]+))x");
    std::vector<ReadOrWrite> spans;
    for (std::sregex_iterator found(events.begin(), events.end(), pattern), end; found != end;
         ++found) {
        const double begin = std::stod((*found)[1]);
        spans.push_back({begin, begin + std::stod((*found)[2])});
    }
    return spans;
}

TEST(RecordedStages, HaveTheSameBitsAndASpanForEachSubgroup) {
    for (const HandlerKind kind : {HandlerKind::naive, HandlerKind::overlapped}) {
        HandledDevice plain({}, kind);
        plain.take_steps(kSteps);
        HandledDevice traced({}, kind);
        trace::Timeline timeline;
        timeline.set_origin();
        traced.device->trace({.timeline = &timeline, .number = 0});
        traced.take_steps(kSteps);
        EXPECT_TRUE(traced.states(kSteps) == plain.states(kSteps));
        EXPECT_EQ(traced.vector, plain.vector);
        const std::string events = timeline.events(0);
        for (const char* name : {"read", "update", "deliver", "write"}) {
            const std::vector<ReadOrWrite> spans = spans_of(events, name);
            ASSERT_EQ(spans.size(), kSteps * traced.settings.subgroups.size()) << name;
            for (std::size_t i = 1; i < spans.size(); ++i) {
                EXPECT_GE(spans[i].begin, spans[i - 1].end - 0.002)
                    << name;  // rounded when printed
            }
        }
    }
}

}  // namespace
}  // namespace nearstep::csd
