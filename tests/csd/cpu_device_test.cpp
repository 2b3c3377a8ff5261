// Tests the device on the host's cores: updates, deltas, start values and failures.
#include "csd/cpu_device.hpp"

#include "codec/delta.hpp"
#include "csd/device_fixture.hpp"
#include "csd/optimizer.hpp"
#include "csd/state_format.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

using trace::Counter;

TEST(CpuDeviceTest, ComputesAdamwOfTheSumOfThePayloads) {
    SmallDevice small({});
    small.initialise();
    update_steps(small, 1);
    const std::vector<State> before = small.states(0);
    const std::vector<State> after = small.states(1);
    for (std::size_t s = 0; s < after.size(); ++s) {
        const std::size_t first = small.settings.subgroups[s].tiles.begin * shard::kTileElems;
        for (std::size_t i = 0; i < after[s].master.size(); i += 77) {
            float gradient = 0;
            for (std::uint64_t source = 0; source < 2 && first + i < kParameters; ++source) {
                gradient += from_bf16(
                    to_bf16(static_cast<float>(random_uniform(10, source, first + i) - 0.5)));
            }
            float master = before[s].master[i];
            float moment1 = 0;
            float moment2 = 0;
            arith::update_lane(Optimizer::adamw, test_scalars(), gradient, master, moment1,
                               moment2);
            ASSERT_EQ(bits_of(after[s].master[i]), bits_of(master))
                << "subgroup " << s << " element " << i;
            ASSERT_EQ(bits_of(after[s].moment1[i]), bits_of(moment1));
            ASSERT_EQ(bits_of(after[s].moment2[i]), bits_of(moment2));
        }
    }
}

// Two groups with boundaries within words, blocks and tiles, and at a tile's end.
GroupMap two_groups() {
    constexpr std::size_t kTile = shard::kTileElems;
    return GroupMap(std::vector<GroupRun>{
        {1, 0}, {300, 1}, {kTile - 3, 0}, {4 * kTile, 1}, {4 * kTile + 70001, 0}, {9 * kTile, 1}});
}

StepScalars scalars_of_two_groups() {
    StepScalars scalars(test_scalars());
    scalars.of_group[1].optimizer = Optimizer::lion;
    scalars.of_group[1].step_size = 3e-3F;
    scalars.of_group[1].decay_factor = 0.9F;
    return scalars;
}

// Each element has the same bits as on a device whose only group has its group's scalars.
TEST(CpuDeviceTest, UpdatesEachElementByItsGroup) {
    for (const UpdatePlace place : {UpdatePlace::near_storage, UpdatePlace::on_host}) {
        for (const int sources : {1, 2}) {
            const SmallDeviceSettings settings{.place = place, .sources = sources};
            std::vector<std::vector<State>> of_group;
            const auto updated = [](SmallDevice& small, const StepScalars& scalars) {
                small.initialise();
                small.put_gradients(0);
                small.device->allocate_slot(0);
                update_all(small, 0, scalars);
                return small.states(1);
            };
            for (std::size_t group = 0; group < 2; ++group) {
                SmallDevice plain(settings);
                of_group.push_back(updated(plain, scalars_of_two_groups().of_group[group]));
            }
            SmallDeviceSettings grouped = settings;
            grouped.groups = two_groups();
            SmallDevice small(grouped);
            const std::vector<State> seen = updated(small, scalars_of_two_groups());
            for (std::size_t s = 0; s < seen.size(); ++s) {
                const std::size_t first =
                    small.settings.subgroups[s].tiles.begin * shard::kTileElems;
                for (std::size_t i = 0; i < seen[s].master.size(); ++i) {
                    const std::size_t element = first + i;
                    const std::size_t group =
                        grouped.groups.runs_in(element, element + 1).front().group;
                    const State& expected = of_group[group][s];
                    ASSERT_EQ(bits_of(seen[s].master[i]), bits_of(expected.master[i])) << element;
                    ASSERT_EQ(bits_of(seen[s].moment1[i]), bits_of(expected.moment1[i]));
                    ASSERT_EQ(bits_of(seen[s].moment2[i]), bits_of(expected.moment2[i]));
                }
            }
        }
    }
}

class DeviceOf : public testing::TestWithParam<StateFormat> {};

TEST_P(DeviceOf, DeliversDeltasThatGiveTheParametersOfEachStep) {
    constexpr std::size_t kTileBytes = 2 * shard::kTileElems;
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
        SmallDevice dense({.dtype = dtype, .state = GetParam()});
        SmallDevice delta({.dtype = dtype, .state = GetParam(), .delivery = Delivery::deltas});
        const std::size_t room_bytes = codec::message_room_bytes(3);  // for the largest subgroup
        std::vector<std::uint64_t> memory(3 * room_bytes / sizeof(std::uint64_t));
        const std::span<std::byte> rooms = std::as_writable_bytes(std::span(memory));
        for (SmallDevice* small : {&dense, &delta}) {
            small->initialise();
            small->device->allocate_slot(0);
        }
        std::size_t bytes = 0;
        for (std::int64_t step = 0; step < 3; ++step) {
            dense.put_gradients(step);
            delta.put_gradients(step);
            delta.vector = dense.vector;
            if (step == 0) {  // the ranks' parameters at the start
                const std::vector<State> states = delta.states(0);
                for (std::size_t s = 0; s < states.size(); ++s) {
                    const std::size_t begin = delta.settings.subgroups[s].tiles.begin;
                    convert_from_fp32(states[s].master.data(), dtype,
                                      &delta.vector[begin * kTileBytes], states[s].master.size());
                }
            }
            update_all(dense, step);
            update_all(delta, step, test_scalars(), rooms);
            for (std::size_t s = 0; s < 3; ++s) {
                const shard::TileRange tiles = delta.settings.subgroups[s].tiles;
                const codec::DeltaReader reader(rooms.subspan(s * room_bytes, room_bytes), tiles);
                EXPECT_EQ(reader.apply_to(
                              std::span(delta.vector)
                                  .subspan(tiles.begin * kTileBytes, tiles.size() * kTileBytes)),
                          std::nullopt);
                bytes += reader.bytes();
            }
            EXPECT_TRUE(delta.vector == dense.vector) << "step " << step;
        }
        EXPECT_TRUE(delta.states(3) == dense.states(3));
        EXPECT_EQ(delta.traffic.snapshot()[Counter::host_parameters], bytes);
        EXPECT_LE(bytes, 3 * (3 * codec::most_message_bytes(0) +
                              6 * (codec::most_message_bytes(1) - codec::most_message_bytes(0))));
    }
}

TEST_P(DeviceOf, WidensWhatWasStoredAndStoresThatAsItWas) {
    SmallDevice small({.state = GetParam()});
    small.initialise();
    update_steps(small, 2);
    SmallDevice restored({.state = GetParam()});
    const std::vector<State> states = small.states(2);
    for (std::size_t s = 0; s < states.size(); ++s) {
        State state = states[s];
        restored.device->write_state(s, 2, state.arrays());
        EXPECT_TRUE(state == states[s]);
    }
    EXPECT_TRUE(restored.states(2) == states);
    restored.device->allocate_slot(0);
    for (SmallDevice* one : {&small, &restored}) {
        one->put_gradients(2);
        update_all(*one, 2);
    }
    EXPECT_TRUE(restored.states(3) == small.states(3));
    EXPECT_TRUE(restored.vector == small.vector);
}

TEST_P(DeviceOf, TellsWhatItStoredOfAStartValue) {
    SmallDevice small({.state = GetParam()});
    State given(2);
    for (std::size_t i = 0; i < given.master.size(); ++i) {
        given.master[i] = static_cast<float>(random_normal(3, 0, i));
    }
    const State before = given;
    small.device->write_state(0, 0, given.arrays());
    State seen(2);
    small.device->read_state(0, 0, seen.arrays());
    EXPECT_TRUE(seen == given);
    EXPECT_EQ(given == before, GetParam() != StateFormat::compact) << "bf16 masters are rounded";
}

// A single dense payload is not decoded.
TEST_P(DeviceOf, DeliversTheStoredMastersInTheParametersFormatAndNothingElse) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
        for (const int sources : {1, 2}) {
            SmallDevice small({.dtype = dtype, .sources = sources, .state = GetParam()});
            small.initialise();
            std::ranges::fill(small.vector, std::byte{0x5A});
            std::vector<std::byte> expected = small.vector;
            update_steps(small, 1);
            const std::vector<State> states = small.states(1);
            for (std::size_t s = 0; s < states.size(); ++s) {
                const std::size_t first =
                    small.settings.subgroups[s].tiles.begin * shard::kTileElems;
                convert_from_fp32(states[s].master.data(), dtype,
                                  &expected[first * size_bytes(dtype)], states[s].master.size());
            }
            EXPECT_TRUE(small.vector == expected) << name_of(dtype) << ", " << sources;
        }
    }
}

TEST_P(DeviceOf, MovesItsFormatsBytesNearStorage) {
    SmallDevice small({.codec = "topk", .state = GetParam()});
    small.initialise();
    small.device->allocate_slot(0);
    std::size_t state = 0;
    for (const shard::Subgroup& subgroup : small.settings.subgroups) {
        state += state_bytes(GetParam(), subgroup.tiles.size());
    }
    const trace::TrafficSnapshot before = small.traffic.snapshot();
    EXPECT_EQ(before[Counter::checkpoint], state);
    small.put_gradients(0);
    update_all(small, 0);
    trace::TrafficSnapshot expected;
    expected.bytes[static_cast<std::size_t>(Counter::internal_read)] = state;
    expected.bytes[static_cast<std::size_t>(Counter::internal_write)] = state;
    expected.bytes[static_cast<std::size_t>(Counter::host_gradients_write)] =
        12 * small.codec->payload_bytes();
    expected.bytes[static_cast<std::size_t>(Counter::host_parameters)] = 2 * kOwnElems;
    EXPECT_EQ((small.traffic.snapshot() - before).bytes, expected.bytes);
}

// State in /dev/shm is updated in place, or through the slots' memory as on a disk.
TEST_P(DeviceOf, GivesTheSameBitsInMappedMemory) {
    const std::string memory = "/dev/shm/";
    for (const Delivery delivery : {Delivery::parameters, Delivery::deltas}) {
        const SmallDeviceSettings settings = {
            .codec = "q4", .state = GetParam(), .delivery = delivery, .parent = memory};
        SmallDeviceSettings copying = settings;
        copying.io = store::IoKind::threads;
        SmallDevice mapped(settings);
        SmallDevice copied(copying);
        std::vector<std::vector<std::byte>> rooms;
        for (SmallDevice* small : {&mapped, &copied}) {
            small->initialise();
            small->device->allocate_slot(0);
            std::vector<std::byte>& destination = rooms.emplace_back(
                std::max(small->vector.size(), 3 * codec::message_room_bytes(3)));
            for (int step = 0; step < 3; ++step) {
                small->put_gradients(step);
                update_all(*small, step, test_scalars(), destination);
            }
        }
        EXPECT_THAT(mapped.device->describe_io(), testing::StartsWith("mapped memory, "));
        EXPECT_THAT(copied.device->describe_io(), testing::StartsWith("threads, page cache, "));
        EXPECT_TRUE(mapped.states(3) == copied.states(3));
        EXPECT_TRUE(mapped.states(2) == copied.states(2));
        EXPECT_TRUE(rooms[0] == rooms[1]);
        EXPECT_EQ(mapped.device->written_bytes(), copied.device->written_bytes());
        // The checksums also cover the padding to whole pages.
        EXPECT_TRUE(bytes_of(mapped.settings.files[0]) == bytes_of(copied.settings.files[0]));
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceOf, testing::ValuesIn(kStateFormats));

// Transport, gradient codec and state format. Near storage a device decodes and updates piece by
// piece, on the host a whole tile at once.
class PlacesWith
    : public testing::TestWithParam<std::tuple<store::IoKind, const char*, StateFormat>> {};

TEST_P(PlacesWith, GiveTheSameBits) {
    const auto [io, codec, state] = GetParam();
    SmallDevice near({.codec = codec, .state = state});
    SmallDevice one_file({.place = UpdatePlace::on_host, .codec = codec, .io = io, .state = state});
    SmallDevice three_files(
        {.place = UpdatePlace::on_host, .codec = codec, .files = 3, .io = io, .state = state});
    for (SmallDevice* small : {&near, &one_file, &three_files}) {
        small->initialise();
        update_steps(*small, 3);
    }
    const std::vector<State> expected = near.states(3);
    EXPECT_TRUE(one_file.states(3) == expected);
    EXPECT_TRUE(three_files.states(3) == expected);
    EXPECT_TRUE(one_file.vector == near.vector);
    EXPECT_TRUE(three_files.vector == near.vector);
}

INSTANTIATE_TEST_SUITE_P(
    IoAndCodecs, PlacesWith,
    testing::Combine(testing::Values(store::IoKind::io_uring, store::IoKind::threads),
                     testing::Values("dense", "topk"), testing::Values(StateFormat::fp32)));
INSTANTIATE_TEST_SUITE_P(Codecs, PlacesWith,
                         testing::Combine(testing::Values(store::IoKind::automatic),
                                          testing::Values("topk", "q8", "q4"),
                                          testing::ValuesIn(kStateFormats)));

TEST(CpuDeviceTest, CountsWhatCrossesTheHostLinkOnTheHost) {
    SmallDevice small({.place = UpdatePlace::on_host, .files = 2});
    small.initialise();
    small.device->allocate_slot(0);
    const trace::TrafficSnapshot before = small.traffic.snapshot();
    small.put_gradients(0);
    update_all(small, 0);
    trace::TrafficSnapshot expected;
    expected.bytes[static_cast<std::size_t>(Counter::host_state_read)] = 12 * kOwnElems;
    expected.bytes[static_cast<std::size_t>(Counter::host_state_write)] = 12 * kOwnElems;
    expected.bytes[static_cast<std::size_t>(Counter::host_gradients_write)] = 4 * kOwnElems;
    expected.bytes[static_cast<std::size_t>(Counter::host_gradients_read)] = 4 * kOwnElems;
    EXPECT_EQ((small.traffic.snapshot() - before).bytes, expected.bytes);
}

TEST(CpuDeviceTest, RefusesGradientsOfOthersTiles) {
    SmallDevice small({.place = UpdatePlace::on_host});
    EXPECT_THROW(small.put_gradient(2, 0), ContractError);
    EXPECT_THROW(small.put_gradient(6, 0), ContractError);
}

TEST(CpuDeviceTest, MayOwnNothing) {
    SmallDevice small({});
    DeviceSettings settings = small.settings;
    settings.files = {small.folder.file("empty")};
    settings.subgroups = {};
    const std::unique_ptr<Device> device = make_cpu_device(settings, small.traffic);
    device->reserve();
    device->flush().wait();
    EXPECT_NO_THROW(device->finish_gradients());
    EXPECT_EQ(planned_files(settings).front().bytes, 0U);
}

}  // namespace
}  // namespace nearstep::csd
