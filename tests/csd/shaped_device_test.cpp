// A device on shaped links takes the time of the bytes it counts on each link, and gives the same
// bits.
#include "csd/device_fixture.hpp"
#include "shaping/fake_clock.hpp"
#include "shaping/node_links.hpp"
#include "support/test.hpp"
#include "support/update_values.hpp"

namespace nearstep::csd {
namespace {

using trace::Counter;

// A byte takes one nanosecond inside the device and two on the host link.
struct ShapedLinks {
    shaping::FakeClock clock;
    shaping::NodeLinks links{{.device_read = 1e9, .device_write = 1e9, .host = 0.5e9},
                             memory::Buffer(shaping::NodeLinks::kTimesBytes),
                             clock};
};

struct Step {
    std::vector<State> states;
    trace::TrafficSnapshot bytes;
    shaping::Time gradient_ns = 0;
    shaping::Time update_ns = 0;
};

Step step_of(SmallDeviceSettings settings, HandlerKind kind) {
    ShapedLinks shaped;
    settings.links = &shaped.links;
    HandledDevice small(settings, kind);
    EXPECT_EQ(shaped.clock.now(), shaping::FakeClock().now()) << "start values are not of a step";
    const shaping::Time begin = shaped.clock.now();
    small.put_gradients(0);
    const shaping::Time middle = shaped.clock.now();
    small.start(0);
    small.handler->finish();
    const shaping::Time end = shaped.clock.now();
    return {small.states(1), small.traffic.snapshot(), middle - begin, end - middle};
}

shaping::Time ns(const Step& step, Counter counter, int ns_per_byte) {
    return static_cast<shaping::Time>(step.bytes[counter]) * ns_per_byte;
}

TEST(AShapedDevice, NearStorageTakesTheTimeOfGradientsOnTheHostLink) {
    const Step step = step_of({}, HandlerKind::overlapped);
    EXPECT_GE(step.gradient_ns, ns(step, Counter::host_gradients_write, 2));
}

TEST(AShapedDevice, WithTheNaiveHandlerAddsUpReadsParametersAndWrites) {
    const Step step = step_of({}, HandlerKind::naive);
    const shaping::Time sum = ns(step, Counter::internal_read, 1) +
                              ns(step, Counter::host_parameters, 2) +
                              ns(step, Counter::internal_write, 1);
    EXPECT_GE(step.update_ns, sum);
    EXPECT_LE(step.update_ns, sum + sum / 50);  // headers of 4 KiB are moved but not counted
}

TEST(AShapedDevice, WithTheOverlappedHandlerTakesItsLongestPartOrMore) {
    const Step step = step_of({}, HandlerKind::overlapped);
    const shaping::Time read = ns(step, Counter::internal_read, 1);
    const shaping::Time write = ns(step, Counter::internal_write, 1);
    const shaping::Time parameters = ns(step, Counter::host_parameters, 2);
    EXPECT_GE(step.update_ns, std::max({read, write, parameters}));
    // The overlap depends on when threads read the clock, which only sleepers advance.
    EXPECT_LE(step.update_ns, (read + write + parameters) * 51 / 50);
}

TEST(AShapedDevice, OnTheHostTakesStateAndGradientsOverTheHostLink) {
    const Step step = step_of({.place = UpdatePlace::on_host, .files = 4}, HandlerKind::overlapped);
    EXPECT_GE(step.gradient_ns, ns(step, Counter::host_gradients_write, 2));
    EXPECT_GE(step.update_ns, ns(step, Counter::host_state_write, 2));
    EXPECT_GE(step.update_ns,
              ns(step, Counter::host_state_read, 2) + ns(step, Counter::host_gradients_read, 2));
}

TEST(AShapedDevice, GivesTheBitsOfOneThatIsNot) {
    HandledDevice small;
    small.take_step(0);
    EXPECT_TRUE(step_of({}, HandlerKind::overlapped).states == small.states(1));
}

TEST(ADeviceWithARatedEngine, IsNoFasterThanThat) {
    SmallDeviceSettings wanted;
    SmallDevice small(wanted);
    small.settings.updates_per_s = 1e7;
    small.device.reset();
    small.device = make_cpu_device(small.settings, small.traffic);
    small.device->reserve();
    small.initialise();
    small.put_gradients(0);
    const auto begin = std::chrono::steady_clock::now();
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, *small.device);
    handler->start(test_scalars(), 0, small.vector);
    handler->finish();
    EXPECT_GE(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
              static_cast<double>(kOwnElems) / 1e7);
}

TEST(ADevice, WritesFewerBytesInNarrowerFormats) {
    std::vector<std::uint64_t> written;
    for (const StateFormat format : kStateFormats) {
        HandledDevice small({.state = format});
        const std::uint64_t before = small.device->written_bytes().front();
        EXPECT_GT(before, 0U) << "start values are written, too";
        small.take_step(0);
        written.push_back(small.device->written_bytes().front() - before);
    }
    const double fp32 = static_cast<double>(written[0]);
    const std::vector<double> shares = {1, 8.0 / 12, 6.03 / 12, 4.03 / 12};
    for (std::size_t i = 0; i < shares.size(); ++i) {
        // Each of three subgroups may add a 4 KiB header and less than a page.
        EXPECT_NEAR(static_cast<double>(written[i]), fp32 * shares[i], 4096 * 2 * 3 + fp32 * 0.001);
    }
    EXPECT_NEAR(fp32, 12.0 * kOwnElems, 4096 * 3);
}

TEST(ADeviceOnTheHost, WritesGradientsToItsDrivesToo) {
    SmallDevice small({.place = UpdatePlace::on_host, .files = 3});
    small.initialise();
    const auto sum = [&small] {
        const std::vector<std::uint64_t> bytes = small.device->written_bytes();
        return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
    };
    const std::uint64_t before = sum();
    small.put_gradients(0);
    EXPECT_EQ(sum() - before, 4 * kOwnElems);
}

}  // namespace
}  // namespace nearstep::csd
