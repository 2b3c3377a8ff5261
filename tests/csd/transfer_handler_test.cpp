// Tests the order of reads, updates and writes, with any number of slots and in memory.
#include "csd/transfer_handler.hpp"

#include "base/units.hpp"
#include "csd/device_fixture.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

constexpr int kHandledSteps = 4;

Outcome train(HandlerKind kind, const SmallDeviceSettings& settings) {
    HandledDevice small(settings, kind);
    for (int step = 0; step < kHandledSteps; ++step) {
        small.put_gradients(step);
        small.start(step);
        for (std::size_t s = 0; s < small.settings.subgroups.size(); ++s) {
            wait_parameters(*small.handler, s);
        }
        small.handler->finish();
    }
    return {small.states(kHandledSteps), small.vector};
}

TEST(TransferHandlerTest, GivesTheSameBitsNaiveOrOverlappedWithAnyNumberOfSlots) {
    const Outcome expected = train(HandlerKind::naive, {.slots = 1});
    for (const int slots : {3, 4, 7}) {
        EXPECT_TRUE(train(HandlerKind::overlapped, {.slots = slots}) == expected) << slots;
    }
    EXPECT_TRUE(train(HandlerKind::overlapped, {.place = UpdatePlace::on_host, .files = 2}) ==
                expected);
    EXPECT_TRUE(train(HandlerKind::naive, {.place = UpdatePlace::on_host, .files = 2}) == expected);
}

TEST(TransferHandlerTest, WantsThreeSlotsToOverlap) {
    SmallDevice small({.slots = 2});
    EXPECT_THROW(std::make_unique<TransferHandler>(HandlerKind::overlapped, *small.device),
                 ContractError);
}

TEST(TransferHandlerTest, UpdatesWhatIsReleasedWhileGradientsArrive) {
    HandledDevice small;
    HandledDevice whole;
    for (int step = 0; step < kHandledSteps; ++step) {
        whole.take_step(step);
        // Each subgroup is updated before the gradients of the previous one arrive.
        small.handler->begin(test_scalars(), step, small.vector);
        for (std::size_t left = small.settings.subgroups.size(); left-- > 0;) {
            EXPECT_FALSE(small.handler->has_parameters(left));
            const shard::TileRange tiles = small.settings.subgroups[left].tiles;
            for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
                small.put_gradient(tile, static_cast<std::uint64_t>(step));
            }
            small.device->finish_gradients();
            small.handler->release(left);
            wait_parameters(*small.handler, left);
        }
        small.handler->finish();
    }
    EXPECT_TRUE(small.states(kHandledSteps) == whole.states(kHandledSteps));
    EXPECT_TRUE(small.vector == whole.vector);
}

// How an update follows what was read ahead.
enum class Follows { at_once, in_backward, after_a_drop, after_a_cancel };

Outcome train_ahead(const SmallDeviceSettings& settings, ReadAhead order, Follows follows) {
    HandledDevice small(settings);
    for (int step = 0; step < kHandledSteps; ++step) {
        small.handler->read_ahead(step, order);
        small.put_gradients(step);
        if (follows == Follows::after_a_drop) {
            small.handler->drop_read_ahead();
        } else if (follows == Follows::after_a_cancel) {
            small.handler->begin(test_scalars(), step, small.vector);
            small.handler->release(2);
            small.handler->cancel();
            small.handler->finish();
            small.handler->read_ahead(step, order);
        }
        small.handler->begin(test_scalars(), step, small.vector);
        for (std::size_t left = 3; follows == Follows::in_backward && left-- > 1;) {
            small.handler->release(left);
        }
        small.handler->release(0);
        small.handler->finish();
    }
    small.handler->read_ahead(kHandledSteps, order);  // and is destroyed
    return {small.states(kHandledSteps), small.vector};
}

TEST(TransferHandlerTest, GivesTheSameBitsIfStateIsReadAheadOrKept) {
    std::vector<SmallDeviceSettings> all;
    for (const int slots : {3, 7}) {
        all.push_back({.slots = slots});
    }
    for (const std::size_t slots : {9U, 12U, 15U}) {
        all.push_back({.read_ahead_bytes = room_for(slots), .subgroups = many_subgroups()});
    }
    for (const SmallDeviceSettings& settings : all) {
        const Outcome expected =
            train(HandlerKind::naive, {.slots = 1, .subgroups = settings.subgroups});
        for (const ReadAhead order : {ReadAhead::from_first, ReadAhead::from_last}) {
            for (const Follows follows : {Follows::at_once, Follows::in_backward,
                                          Follows::after_a_drop, Follows::after_a_cancel}) {
                EXPECT_TRUE(train_ahead(settings, order, follows) == expected)
                    << settings.slots << " " << settings.read_ahead_bytes << " "
                    << static_cast<int>(order) << " " << static_cast<int>(follows);
            }
        }
    }
}

TEST(TransferHandlerTest, ReadsAheadWhatItsSlotsHold) {
    HandledDevice small({.slots = 3});
    const auto bytes = [&] { return small.traffic.snapshot()[trace::Counter::internal_read]; };
    small.handler->read_ahead(0, ReadAhead::from_last);
    small.handler->drop_read_ahead();  // waits
    // The last two subgroups have one and three tiles.
    EXPECT_EQ(bytes(), state_bytes(StateFormat::fp32, 4));
    small.handler->read_ahead(0, ReadAhead::from_first);
    EXPECT_THROW(small.handler->read_ahead(0, ReadAhead::from_first), ContractError);
    EXPECT_THROW(small.handler->begin(test_scalars(), 1, small.vector), ContractError);
}

TEST(TransferHandlerTest, SurfacesDamageThatWasReadAheadInTheUpdate) {
    HandledDevice small;
    small.flip_bit_of_state(1, 0);
    small.handler->read_ahead(0, ReadAhead::from_first);
    EXPECT_NO_THROW(small.handler->drop_read_ahead());
    small.handler->read_ahead(0, ReadAhead::from_first);
    small.put_gradients(0);
    small.start(0);
    EXPECT_THROW(small.handler->finish(), IoError);
    // After the repair the same update succeeds.
    small.flip_bit_of_state(1, 0);
    small.handler->read_ahead(0, ReadAhead::from_first);
    small.start(0);
    EXPECT_NO_THROW(small.handler->finish());
}

TEST(TransferHandlerTest, LeavesTheOldStateWholeWhenItIsCancelled) {
    for (const HandlerKind kind : {HandlerKind::naive, HandlerKind::overlapped}) {
        HandledDevice small({}, kind);
        const std::vector<State> before = small.states(0);
        small.put_gradients(0);
        small.handler->begin(test_scalars(), 0, small.vector);
        small.handler->release(2);
        wait_parameters(*small.handler, 2);
        small.handler->cancel();
        small.handler->finish();
        EXPECT_FALSE(small.handler->has_parameters(0));
        EXPECT_TRUE(small.states(0) == before);
        EXPECT_THROW(small.states(1), IoError);
        // Repeats the same generation.
        small.start(0);
        small.handler->finish();
        EXPECT_NO_THROW(small.states(1));
    }
}

class HandlerOf : public testing::TestWithParam<HandlerKind> {};

TEST_P(HandlerOf, ShowsTheNewParametersOnceItSaysSo) {
    HandledDevice small({}, GetParam());
    small.put_gradients(0);
    small.start(0);
    wait_parameters(*small.handler, 1);
    EXPECT_TRUE(small.handler->has_parameters(0));
    EXPECT_TRUE(small.handler->has_parameters(1));
    const std::size_t begin = small.settings.subgroups[1].tiles.begin * shard::kTileElems * 2;
    const std::size_t end = small.settings.subgroups[1].tiles.end * shard::kTileElems * 2;
    const std::vector<std::byte> early(small.vector.begin() + static_cast<std::ptrdiff_t>(begin),
                                       small.vector.begin() + static_cast<std::ptrdiff_t>(end));
    small.handler->finish();
    EXPECT_TRUE(small.handler->has_parameters(2));
    State state(3);
    small.device->read_state(1, 1, state.arrays());
    std::vector<std::byte> expected(early.size());
    convert_from_fp32(state.master.data(), Dtype::bf16, expected.data(), state.master.size());
    EXPECT_TRUE(early == expected);
}

TEST_P(HandlerOf, SurfacesADamagedByteInEveryCallAndKeepsTheOldState) {
    HandledDevice small({}, GetParam());
    const std::vector<State> before = small.states(0);
    small.put_gradients(0);
    small.flip_bit_of_state(1, 0);
    small.start(0);
    EXPECT_THAT(message_of<IoError>([&] { wait_parameters(*small.handler, 2); }),
                HasSubstr("subgroup 1"));
    EXPECT_THROW(small.handler->has_parameters(2), IoError);
    EXPECT_THROW(small.handler->finish(), IoError);
    EXPECT_THROW(small.handler->finish(), IoError);
    // After the repair the same update succeeds, because generation 0 was not overwritten.
    small.flip_bit_of_state(1, 0);
    EXPECT_TRUE(small.states(0) == before);
    small.start(0);
    EXPECT_NO_THROW(small.handler->finish());
    EXPECT_NO_THROW(small.states(1));
}

TEST_P(HandlerOf, SurfacesAnErrorOfALaneInFinish) {
    HandledDevice small({.place = UpdatePlace::on_host, .files = 2}, GetParam());
    small.put_gradients(0);
    std::filesystem::resize_file(small.settings.files[1], 0);
    small.start(0);
    EXPECT_THAT(message_of<IoError>([&] { small.handler->finish(); }),
                HasSubstr(small.settings.files[1]));
}

TEST_P(HandlerOf, MayBeDestroyedDuringAnUpdate) {
    HandledDevice small({}, GetParam());
    small.put_gradients(0);
    small.start(0);
    small.handler.reset();
    EXPECT_NO_THROW(small.states(1));
    small.handler = std::make_unique<TransferHandler>(GetParam(), *small.device);
    small.start(1);
    EXPECT_NO_THROW(small.handler->finish());
}

INSTANTIATE_TEST_SUITE_P(Kinds, HandlerOf,
                         testing::Values(HandlerKind::naive, HandlerKind::overlapped));

}  // namespace
}  // namespace nearstep::csd
