// Compares a device in GPU memory with one on a drive, bit for bit; skipped without a GPU.
#include "csd/gpu_device.hpp"

#include "csd/device_fixture.hpp"
#include "csd/gpu_client.hpp"
#include "csd/state_format.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

// The second subgroup has tiles that two groups share, and one of a skipped group.
constexpr std::size_t kSharedAt = 4 * shard::kTileElems + 777;
const std::array kRuns{GroupRun{kSharedAt, 0}, GroupRun{5 * shard::kTileElems, 1},
                       GroupRun{6 * shard::kTileElems, 2}, GroupRun{kParameters, 1}};

class InGpuMemory : public testing::TestWithParam<StateFormat> {
protected:
    void SetUp() override {
        if (memory::gpus() == 0) {
            GTEST_SKIP() << "there is no GPU here";
        }
        settings_ = {.codec = "q4", .state = GetParam(), .groups = GroupMap(kRuns)};
    }

    SmallDeviceSettings on_gpu() const {
        SmallDeviceSettings settings = settings_;
        settings.gpu = 0;
        settings.spare = 1;
        settings.is_in_gpu_memory = true;
        return settings;
    }

    SmallDeviceSettings settings_;
};

TEST_P(InGpuMemory, StateTakesTheStepsOfAFile) {
    StepScalars scalars(test_scalars());
    scalars.of_group[1].step_size = 3e-2F;
    scalars.is_skipped[2] = true;
    HandledDevice on_drive(settings_);
    HandledDevice there(on_gpu());
    GpuClient client;
    EXPECT_EQ(on_drive.states(0), there.states(0));
    for (std::int64_t step = 0; step < 12; ++step) {
        scalars.random_key = static_cast<std::uint64_t>(step);
        const bool has_tensors = step % 2 == 1;
        there.device->deliver_to(has_tensors ? client.tensors(on_drive.vector, false) : nullptr);
        on_drive.put_gradients(step % 4);
        there.put_gradients(step % 4);
        if (step % 3 > 0) {
            there.handler->read_ahead(step, ReadAhead::from_last);
        }
        if (step % 4 == 3) {  // an update that is given up
            there.handler->begin(scalars, step, there.vector);
            there.handler->release(settings_.subgroups.size() - there.device->most_unaccepted());
            there.handler->cancel();
            there.handler->finish();
            there.device->accept(step);
            ASSERT_EQ(on_drive.states(step), there.states(step)) << "the step before stays";
        }
        on_drive.start(step, scalars);
        there.start(step, scalars);
        on_drive.handler->finish();
        there.handler->finish();
        ASSERT_EQ(on_drive.states(step + 1), there.states(step + 1)) << "step " << step;
        ASSERT_EQ(on_drive.vector, has_tensors ? client.completed(there.vector) : there.vector)
            << "step " << step;
    }
    EXPECT_TRUE(client.has_any());
}

TEST_P(InGpuMemory, CountsTheBytesOfAFile) {
    HandledDevice on_drive(settings_);
    HandledDevice there(on_gpu());
    GpuClient client;
    there.device->deliver_to(client.tensors(there.vector, false));
    on_drive.take_step(0);
    there.take_step(0);
    const trace::TrafficSnapshot of_drive = on_drive.traffic.snapshot();
    const trace::TrafficSnapshot bytes = there.traffic.snapshot();
    EXPECT_GT(bytes[trace::Counter::gpu_parameters], 0U);
    EXPECT_EQ(of_drive[trace::Counter::host_parameters],
              bytes[trace::Counter::host_parameters] + bytes[trace::Counter::gpu_parameters]);
    for (const trace::Counter counter :
         {trace::Counter::internal_read, trace::Counter::internal_write,
          trace::Counter::host_gradients_write}) {
        EXPECT_EQ(of_drive[counter], bytes[counter]);
    }
}

// A program changes all masters, for which there are too few spare places.
TEST_P(InGpuMemory, StateIsReplacedWhereItLies) {
    HandledDevice there(on_gpu());
    for (std::size_t s = 0; s < settings_.subgroups.size(); ++s) {
        State state(settings_.subgroups[s].tiles.size());
        there.device->read_state(s, 0, state.arrays());
        state.master[1] = 0.5F;
        there.device->write_state(s, 1, state.arrays());
    }
    there.device->accept(1);
    EXPECT_EQ(there.states(1).front().master[1], 0.5F);
    there.take_step(1);
    EXPECT_NE(there.states(2).front().master[1], 0.5F);
}

TEST_P(InGpuMemory, MastersAreReadAsStored) {
    SmallDevice on_drive(settings_);
    SmallDevice there(on_gpu());
    on_drive.initialise();
    there.initialise();
    const std::size_t bytes = Device::kReadElems * size_bytes(master_dtype(GetParam()));
    memory::Buffer one(bytes);
    memory::Buffer other(bytes);
    on_drive.device->read_masters(1, 0, 2 * Device::kReadElems, one.span()).wait();
    there.device->read_masters(1, 0, 2 * Device::kReadElems, other.span()).wait();
    EXPECT_TRUE(std::ranges::equal(one.span(), other.span()));
}

INSTANTIATE_TEST_SUITE_P(Formats, InGpuMemory, testing::ValuesIn(kStateFormats),
                         [](const auto& format) { return std::string(name_of(format.param)); });

}  // namespace
}  // namespace nearstep::csd
