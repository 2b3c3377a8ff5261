// Devices whose new parameters stay in the state: what is awaited can be read there.
#include "csd/device_fixture.hpp"
#include "csd/state_format.hpp"
#include "memory/buffer.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

constexpr int kStepsInState = 3;

std::vector<float> read_masters(SmallDevice& small, std::size_t subgroup, std::int64_t generation,
                                std::size_t first, std::size_t elems) {
    const Dtype dtype = master_dtype(small.settings.state);
    memory::Buffer memory(elems * size_bytes(dtype));
    small.device->read_masters(subgroup, generation, first, memory.span()).wait();
    std::vector<float> masters(elems);
    convert_to_fp32(dtype, memory.span().data(), masters.data(), elems);
    return masters;
}

class Undelivered
    : public testing::TestWithParam<std::tuple<HandlerKind, UpdatePlace, StateFormat>> {
protected:
    SmallDeviceSettings settings(Delivery delivery) {
        const auto [kind, place, state] = GetParam();
        return {.place = place, .state = state, .delivery = delivery};
    }
};

TEST_P(Undelivered, MastersAreReadWhenTheirSubgroupWasAwaited) {
    const HandlerKind kind = std::get<0>(GetParam());
    HandledDevice delivered(settings(Delivery::parameters), kind);
    HandledDevice small(settings(Delivery::none), kind);
    for (HandledDevice* one : {&delivered, &small}) {
        for (int step = 0; step < kStepsInState; ++step) {
            one->put_gradients(step);
            one->start(step);
            std::vector<std::vector<float>> seen;
            for (std::size_t s = 0; s < one->settings.subgroups.size(); ++s) {
                wait_parameters(*one->handler, s);
                if (one == &small) {
                    seen.push_back(read_masters(small, s, step + 1, Device::kReadElems,
                                                shard::kTileElems - Device::kReadElems));
                }
            }
            one->handler->finish();
            const std::vector<State> states = one->states(step + 1);
            for (std::size_t s = 0; s < seen.size(); ++s) {
                EXPECT_TRUE(std::equal(seen[s].begin(), seen[s].end(),
                                       states[s].master.begin() + Device::kReadElems));
            }
        }
    }
    EXPECT_TRUE(small.states(kStepsInState) == delivered.states(kStepsInState));
    EXPECT_THAT(small.vector, testing::Each(std::byte{0}));
    EXPECT_EQ(small.traffic.snapshot()[trace::Counter::host_parameters], 0U);
    EXPECT_EQ(small.traffic.snapshot()[trace::Counter::host_masters_read],
              kStepsInState * 3 * (shard::kTileElems - Device::kReadElems) *
                  size_bytes(master_dtype(small.settings.state)));
}

// The digest of an extent covers all of it, and a part alone is read.
TEST(UndeliveredTest, MastersThatAreNotThoseThatWereWrittenAreRefused) {
    SmallDevice small({.delivery = Delivery::none});
    small.initialise();
    const auto read = [&](std::size_t subgroup, std::size_t page) {
        read_masters(small, subgroup, 0, page * Device::kReadElems, Device::kReadElems);
    };
    small.flip_bit_of_state(1, 0);  // in its first page
    EXPECT_THAT(message_of<DamageError>([&] { read(1, 0); }),
                states("subgroup 1", small.settings.files[0]));
    EXPECT_NO_THROW(read(1, 1));
    EXPECT_NO_THROW(read(0, 0));
    EXPECT_THROW(read_masters(small, 0, 2, 0, Device::kReadElems), DamageError);  // was not written
}

INSTANTIATE_TEST_SUITE_P(
    , Undelivered,
    testing::Combine(testing::Values(HandlerKind::naive, HandlerKind::overlapped),
                     testing::Values(UpdatePlace::near_storage, UpdatePlace::on_host),
                     testing::Values(StateFormat::fp32, StateFormat::compact)));

}  // namespace
}  // namespace nearstep::csd
