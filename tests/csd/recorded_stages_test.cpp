#include "csd/device_fixture.hpp"
#include "csd/transfer_handler.hpp"
#include "support/test.hpp"

#include <regex>

namespace nearstep::csd {
namespace {

constexpr int kSteps = 3;

std::vector<State> states_after_steps(SmallDevice& small, HandlerKind kind) {
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(kind, *small.device);
    for (int step = 0; step < kSteps; ++step) {
        small.put_gradients(step);
        handler->start(test_scalars(), step, small.vector);
        handler->finish();
    }
    return small.states(kSteps);
}

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
        SmallDevice plain({});
        const std::vector<State> wanted = states_after_steps(plain, kind);
        SmallDevice traced({});
        trace::Timeline timeline;
        timeline.set_origin();
        traced.device->trace({.timeline = &timeline, .number = 0});
        EXPECT_TRUE(states_after_steps(traced, kind) == wanted);
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
