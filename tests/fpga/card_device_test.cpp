// A card as a device: same pipeline, bits and files as the emulated device, and its failures.
#include "codec/delta.hpp"
#include "fpga/card_fixture.hpp"
#include "support/places.hpp"
#include "support/test.hpp"
#include "support/update_values.hpp"

namespace nearstep::csd {
namespace {

using trace::Counter;

constexpr int kSteps = 3;

std::size_t destination_bytes(const SmallDevice& small) {
    return small.settings.delivery == Delivery::deltas
               ? small.settings.subgroups.size() * codec::message_room_bytes(3)
               : small.vector.size();
}

void take_step(SmallDevice& small, TransferHandler& handler, int step) {
    small.put_gradients(step);
    StepScalars scalars(test_scalars());
    scalars.of_group[1].optimizer = arith::Optimizer::lion;
    scalars.of_group[1].step_size = 3e-3F;
    scalars.random_key = static_cast<std::uint64_t>(step) + 77;
    handler.start(scalars, step, small.vector);
    handler.finish();
}

Outcome train(HandlerKind kind, SmallDevice& small) {
    small.vector.assign(destination_bytes(small), std::byte{0});
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(kind, *small.device);
    for (int step = 0; step < kSteps; ++step) {
        take_step(small, *handler, step);
    }
    return {small.states(kSteps), small.vector};
}

Outcome train_emulated(const SmallDeviceSettings& settings) {
    SmallDevice small(settings);
    return train(HandlerKind::overlapped, small);
}

Outcome train_card(HandlerKind kind, const SmallDeviceSettings& settings) {
    SmallCard small(settings);
    return train(kind, small);
}

// updater_test, updater_sweep_test and first_run have the other pairs of a codec and a format.
TEST(CardDeviceTest, GivesTheBitsOfTheCpuDevice) {
    std::vector<SmallDeviceSettings> all = {{.slots = 3},
                                            {.slots = 5},
                                            {.dtype = Dtype::fp32, .sources = 1},
                                            {.dtype = Dtype::fp16, .sources = 1},
                                            {.delivery = Delivery::deltas}};
    for (const auto& [state, codec] :
         {std::pair(StateFormat::fp32, "q4"), std::pair(StateFormat::bf16, "q8"),
          std::pair(StateFormat::q8, "topk"), std::pair(StateFormat::compact, "topk")}) {
        all.push_back({.codec = codec, .state = state});
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        const Outcome expected = train_emulated(all[i]);
        EXPECT_TRUE(train_card(HandlerKind::overlapped, all[i]) == expected) << i;
        EXPECT_TRUE(i > 1 || train_card(HandlerKind::naive, all[i]) == expected) << i;
    }
}

// The device has tiles 0, 1, 3, 4, 5 and 8.
GroupMap groups_until(std::size_t first, std::size_t second) {
    return GroupMap(std::vector<GroupRun>{{first, 0}, {second, 1}, {9 * shard::kTileElems, 0}});
}

TEST(CardDeviceTest, UpdatesEachElementByItsGroup) {
    constexpr std::size_t kTile = shard::kTileElems;
    SmallDeviceSettings settings{.state = StateFormat::q8};
    const Outcome of_one_group = train_emulated(settings);
    // Boundaries within a tile, between blocks, at the ends of tiles, and outside the device.
    for (const GroupMap& groups :
         {groups_until(16, 4 * kTile + 4096), groups_until(kTile - 48, 5 * kTile),
          groups_until(2 * kTile + 17, 6 * kTile)}) {
        settings.groups = groups;
        const Outcome expected = train_emulated(settings);
        EXPECT_TRUE(expected.states != of_one_group.states);
        EXPECT_TRUE(train_card(HandlerKind::overlapped, settings) == expected);
    }
}

TEST(CardDeviceTest, RefusesGroupsThatEndWithinAWordAndSaysWhatToDo) {
    SmallDevice small({});
    small.settings.groups = groups_until(2 * shard::kTileElems, 4 * shard::kTileElems + 8);
    EXPECT_THAT(
        message_of<ConfigError>([&] {
            make_card_device(small.settings, {.card = "0", .xclbin = emulated_xclbin()},
                             small.traffic);
        }),
        AllOf(HasSubstr("subgroup 1 of device \"device under test\""), HasSubstr("element 262152"),
              HasSubstr("csd.device = \"emulated\""), HasSubstr("csd.host_engine")));
}

TEST(CardDeviceTest, GoesOnFromFilesOfTheCpuDeviceAndBack) {
    const Outcome expected = train_emulated({});
    SmallCard small({});
    small.initialise();
    for (int step = 0; step < kSteps; ++step) {
        if (step == 1) {
            small.use_host();
        } else {
            small.use_card();
        }
        take_step(small, *std::make_unique<TransferHandler>(HandlerKind::overlapped, *small.device),
                  step);
    }
    small.use_host();
    EXPECT_TRUE(small.states(kSteps) == expected.states);
    EXPECT_TRUE(small.vector == expected.vector);
}

TEST(CardDeviceTest, CountsTheBytesThatTheCpuDeviceCounts) {
    SmallDevice emulated({});
    train(HandlerKind::overlapped, emulated);
    SmallCard card({});
    train(HandlerKind::overlapped, card);
    EXPECT_EQ(card.traffic.snapshot().bytes, emulated.traffic.snapshot().bytes);
    EXPECT_GT(card.traffic.snapshot()[Counter::internal_read], 0U);
}

TEST(CardDeviceTest, SendsStateToTheCardWithoutSynchronisingIt) {
    SmallCard small({});
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, *small.device);
    const std::uint64_t to_card = card_counter(0, 0);
    const std::uint64_t from_card = card_counter(0, 1);
    take_step(small, *handler, 0);
    const trace::TrafficSnapshot moved = small.traffic.snapshot();
    EXPECT_EQ(card_counter(0, 0) - to_card, moved[Counter::host_gradients_write]);
    // Besides parameters: a report and two digests per subgroup.
    EXPECT_EQ(card_counter(0, 1) - from_card, moved[Counter::host_parameters] + 3 * 3 * 64);
}

// Tiles come as if the update began during backward: the last ones first, with waits in between.
TEST(CardDeviceTest, SendsEachPayloadOnceHoweverOftenItIsWaitedFor) {
    const Outcome expected = train_emulated({});
    SmallCard small({});
    small.vector.assign(destination_bytes(small), std::byte{0});
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, *small.device);
    const std::uint64_t to_card = card_counter(0, 0);
    for (int step = 0; step < kSteps; ++step) {
        for (std::size_t g = small.settings.subgroups.size(); g-- > 0;) {
            const shard::TileRange tiles = small.settings.subgroups[g].tiles;
            for (std::size_t tile = tiles.end; tile-- > tiles.begin;) {
                small.put_gradient(tile, static_cast<std::uint64_t>(step));
                if (tile % 2 == 0) {
                    small.device->finish_gradients();
                }
            }
        }
        small.device->finish_gradients();
        UpdateScalars scalars = test_scalars();
        scalars.random_key = static_cast<std::uint64_t>(step) + 77;
        handler->start(scalars, step, small.vector);
        handler->finish();
    }
    EXPECT_EQ(card_counter(0, 0) - to_card,
              small.traffic.snapshot()[Counter::host_gradients_write]);
    EXPECT_TRUE(small.states(kSteps) == expected.states);
    EXPECT_TRUE(small.vector == expected.vector);
}

TEST(CardDeviceTest, PassesStateThroughTheHostWhereThereIsNoPeerToPeer) {
    const Outcome expected = train_emulated({});
    SmallCard small({});
    plan_faults("no_p2p=0:0");
    small.use_card();
    testing::internal::CaptureStderr();
    small.use_card();
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("event=no_peer_to_peer"), HasSubstr("p2p enable")));
    EXPECT_THAT(small.device->describe_io(), HasSubstr("no peer to peer"));
    EXPECT_TRUE(train(HandlerKind::overlapped, small) == expected);
    const trace::TrafficSnapshot moved = small.traffic.snapshot();
    EXPECT_EQ(moved[Counter::internal_read], 0U);
    // Reads and writes both cross the link twice, once in each direction.
    EXPECT_EQ(moved[Counter::host_state_read], 2 * kSteps * kOwnElems * 12);
    EXPECT_EQ(moved[Counter::host_state_write], 2 * kSteps * kOwnElems * 12);
    plan_faults("");
}

class CardHandlerOf : public testing::TestWithParam<HandlerKind> {
protected:
    void TearDown() override { plan_faults(""); }

    // The message of a step whose runs fail.
    std::string failure_of(SmallCard& small, const std::string& faults) {
        small.initialise();
        const auto handler = std::make_unique<TransferHandler>(GetParam(), *small.device);
        small.put_gradients(0);
        plan_faults(faults);
        handler->start(test_scalars(), 0, small.vector);
        return message_of<XrtError>([&] { handler->finish(); });
    }
};

TEST_P(CardHandlerOf, NamesACompletionThatIsLost) {
    SmallCard small({}, "0", std::chrono::milliseconds(700));
    // The fifth run among the digests and updates of three subgroups.
    EXPECT_THAT(failure_of(small, "lost_completion=0:5"),
                AllOf(HasSubstr("0000:e0:00.1"), HasSubstr("time-out"), HasSubstr("subgroup"),
                      HasSubstr("0.7 s")));
    EXPECT_THAT(message_of<XrtError>([&] {
                    const auto handler =
                        std::make_unique<TransferHandler>(GetParam(), *small.device);
                    handler->start(test_scalars(), 0, small.vector);
                    handler->finish();
                }),
                HasSubstr("time-out"))
        << "a card that was given up is not used again";
}

TEST_P(CardHandlerOf, NamesARunThatFails) {
    SmallCard small({});
    EXPECT_THAT(failure_of(small, "run_error=0:4"),
                AllOf(HasSubstr("0000:e0:00.1"), HasSubstr("state \"error\"")));
    plan_faults("");
    // Generation 0 was not overwritten, and the card still works.
    EXPECT_NO_THROW(small.states(0));
    take_step(small, *std::make_unique<TransferHandler>(GetParam(), *small.device), 0);
    EXPECT_NO_THROW(small.states(1));
}

TEST_P(CardHandlerOf, WaitsForACompletionThatIsLate) {
    SmallCard small({});
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(GetParam(), *small.device);
    plan_faults("late_completion=0:3:400");
    take_step(small, *handler, 0);
    EXPECT_NO_THROW(small.states(1));
}

TEST_P(CardHandlerOf, SeesStateThatIsDamagedOrOfAnotherGeneration) {
    SmallCard small({});
    small.initialise();
    small.flip_bit_of_state(1, 0);
    const auto handler = std::make_unique<TransferHandler>(GetParam(), *small.device);
    small.put_gradients(0);
    handler->start(test_scalars(), 0, small.vector);
    EXPECT_THAT(message_of<IoError>([&] { handler->finish(); }),
                AllOf(HasSubstr("subgroup 1"), HasSubstr("checksum")));
    small.flip_bit_of_state(1, 0);
    handler->start(test_scalars(), 2, small.vector);
    EXPECT_THAT(message_of<IoError>([&] { handler->finish(); }),
                HasSubstr("generation 0 instead of 2"));
}

TEST_P(CardHandlerOf, DoesNotHideASynchronisationThatWasForgotten) {
    const Outcome expected = train_emulated({});
    SmallCard small({});
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(GetParam(), *small.device);
    plan_faults("lost_sync=0:1");  // the payloads of a subgroup
    for (int step = 0; step < kSteps; ++step) {
        take_step(small, *handler, step);
    }
    EXPECT_FALSE(small.states(kSteps) == expected.states);
}

INSTANTIATE_TEST_SUITE_P(Kinds, CardHandlerOf,
                         testing::Values(HandlerKind::naive, HandlerKind::overlapped));

TEST(CardDevicesTest, FourRunAtOnce) {
    const Outcome expected = train_emulated({});
    std::vector<std::unique_ptr<SmallCard>> cards;
    for (const char* card : {"0", "1", "2", "0000:e0:03.1"}) {
        cards.push_back(std::make_unique<SmallCard>(SmallDeviceSettings{}, card));
    }
    std::vector<Outcome> outcomes(cards.size());
    {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < cards.size(); ++i) {
            threads.emplace_back(
                [&, i] { outcomes[i] = train(HandlerKind::overlapped, *cards[i]); });
        }
    }
    for (const Outcome& outcome : outcomes) {
        EXPECT_TRUE(outcome == expected);
    }
}

TEST(CardDevicesTest, SayWhatIsMissing) {
    SmallDevice small({});
    small.device.reset();
    const auto refusal = [&](const std::string& card, const std::string& xclbin) {
        return message_of<ConfigError>([&] {
            make_card_device(small.settings, {.card = card, .xclbin = xclbin}, small.traffic);
        });
    };
    EXPECT_THAT(refusal("9", emulated_xclbin()), HasSubstr("csd.cards"));
    EXPECT_THAT(refusal("0000:01:00.1", emulated_xclbin()), HasSubstr("csd.cards"));
    EXPECT_THAT(refusal("0", "/nowhere.xclbin"), HasSubstr("csd.xclbin"));
    EXPECT_THAT(refusal("0", test::source_file("tests/fpga/CMakeLists.txt")),
                states(test::source_file("tests/fpga/CMakeLists.txt")));
    plan_faults("no_memory=0:4");  // after the slots are made
    EXPECT_THAT(refusal("0", emulated_xclbin()), HasSubstr("csd.slots"));
    plan_faults("");
    small.settings.subgroups = {{0, 0, {0, fpga::kMostSubgroupTiles + 1}}};
    EXPECT_THAT(refusal("0", emulated_xclbin()), HasSubstr("csd.subgroup_tiles"));
    small.settings.subgroups = small_subgroups();
    plan_faults("no_memory=0:2");  // after the test of peer-to-peer access
    EXPECT_THAT(refusal("0", emulated_xclbin()), HasSubstr("gradients"));
    plan_faults("");
}

}  // namespace
}  // namespace nearstep::csd
