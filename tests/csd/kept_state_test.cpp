// Tests state that stays in memory between steps.
#include "csd/device_fixture.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

// Updates all subgroups from this generation on. Returns the tiles whose state was read for it.
std::size_t tiles_read_for_update(HandledDevice& small, std::int64_t generation) {
    const auto bytes = [&] { return small.traffic.snapshot()[trace::Counter::internal_read]; };
    const std::size_t before = bytes();
    small.take_step(generation);
    return (bytes() - before) / state_bytes(StateFormat::fp32, 1);
}

TEST(KeptState, ReadsKeptStateOnce) {
    for (const auto& [slots, others] : {std::pair(8U, 14U), {9U, 13U}, {12U, 10U}, {15U, 0U}}) {
        HandledDevice small({.read_ahead_bytes = room_for(slots), .subgroups = many_subgroups()});
        EXPECT_EQ(tiles_read_for_update(small, 0), 14U) << slots;
        EXPECT_EQ(tiles_read_for_update(small, 1), others) << slots;
        EXPECT_EQ(tiles_read_for_update(small, 2), others) << slots;
        // Storage has it all: another process could go on.
        HandledDevice whole({.subgroups = many_subgroups()});
        whole.take_steps(3);
        EXPECT_TRUE(small.states(3) == whole.states(3)) << slots;
    }
}

TEST(KeptState, KeepsWhatIsForeseenForItsMemory) {
    const std::size_t all = many_subgroups().size();
    for (const std::size_t slots : {0U, 8U, 12U, 14U, 15U, 40U}) {
        const SmallDevice small(
            {.read_ahead_bytes = room_for(slots), .subgroups = many_subgroups()});
        const KeptSlots kept = slots_that_keep(room_for(slots), slot_bytes(StateFormat::fp32, 1));
        EXPECT_EQ(static_cast<std::size_t>(small.device->kept_slots()),
                  all <= kept.if_all_fit ? all : kept.otherwise)
            << slots;
    }
}

TEST(KeptState, ReadsAgainWhatACancelledUpdateChanged) {
    HandledDevice small({.read_ahead_bytes = room_for(15), .subgroups = many_subgroups()});
    tiles_read_for_update(small, 0);
    small.put_gradients(1);
    small.handler->begin(test_scalars(), 1, small.vector);
    small.handler->release(11);
    for (const std::size_t subgroup : {11U, 12U, 13U}) {
        wait_parameters(*small.handler, subgroup);
    }
    small.handler->cancel();
    small.handler->finish();
    EXPECT_EQ(tiles_read_for_update(small, 1), 3U);
}

TEST(KeptState, ReadsStateThatWasWrittenFromOutside) {
    HandledDevice small({.read_ahead_bytes = room_for(15), .subgroups = many_subgroups()});
    tiles_read_for_update(small, 0);
    State state(1);
    small.device->read_state(4, 1, state.arrays());
    state.master[0] += 1;
    const float changed = state.master[0];
    small.device->write_state(4, 1, state.arrays());
    EXPECT_EQ(tiles_read_for_update(small, 1), 1U);
    small.device->read_state(4, 2, state.arrays());
    EXPECT_NEAR(state.master[0], changed, 0.5);
}

// One of 64 updates of each subgroup reads what is kept all the same.
TEST(KeptState, NoticesADriveThatLostKeptState) {
    HandledDevice small({.read_ahead_bytes = room_for(15), .subgroups = many_subgroups()});
    tiles_read_for_update(small, 0);
    std::size_t read = 0;
    std::int64_t step = 1;
    for (; step <= 64; ++step) {
        read += tiles_read_for_update(small, step);
    }
    EXPECT_EQ(read, 14U);
    const auto damaged_steps = [&] {
        for (; step <= 128; ++step) {
            small.flip_bit_of_state(5, step);
            tiles_read_for_update(small, step);
        }
    };
    EXPECT_THROW(damaged_steps(), IoError);
}

}  // namespace
}  // namespace nearstep::csd
