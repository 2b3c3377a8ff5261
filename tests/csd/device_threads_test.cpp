// Tests how many threads devices take.
#include "csd/device_fixture.hpp"
#include "shaping/fake_clock.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

std::ptrdiff_t threads_of_process() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// The executor is the rank's, and the links' thread the node's.
TEST(CpuDevices, CostThreeThreadsEachAtMost) {
    const shaping::FakeClock clock;
    shaping::NodeLinks links({.device_read = 1e9, .device_write = 1e9},
                             memory::Buffer(shaping::NodeLinks::kTimesBytes), clock);
    for (const store::IoKind io : {store::IoKind::automatic, store::IoKind::threads}) {
        for (const std::ptrdiff_t count : {1, 4}) {
            const std::ptrdiff_t before = threads_of_process();
            std::vector<std::unique_ptr<HandledDevice>> devices;
            for (std::ptrdiff_t i = 0; i < count; ++i) {
                devices.push_back(std::make_unique<HandledDevice>(
                    SmallDeviceSettings{.io = io, .links = &links}));
                devices.back()->put_gradients(0);
            }
            for (const auto& device : devices) {
                device->start(0);
            }
            const std::ptrdiff_t of_executors = count * (devices[0]->executor.members() - 1);
            EXPECT_LE(threads_of_process() - before - of_executors, 3 * count)
                << store::name_of(io);
        }
    }
}

}  // namespace
}  // namespace nearstep::csd
