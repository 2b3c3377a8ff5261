#include "csd/transfer_handler.hpp"

#include "base/units.hpp"
#include "csd/device_fixture.hpp"
#include "csd/state_layout.hpp"
#include "support/test.hpp"

#include <condition_variable>
#include <future>
#include <mutex>

namespace nearstep::csd {
namespace {

constexpr int kHandledSteps = 4;

struct Outcome {
    std::vector<State> states;
    std::vector<std::byte> vector;
    friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome train(HandlerKind kind, const SmallDeviceSettings& settings) {
    SmallDevice small(settings);
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(kind, *small.device);
    for (int step = 0; step < kHandledSteps; ++step) {
        small.put_gradients(step);
        handler->start(test_scalars(), step, small.vector);
        for (std::size_t s = 0; s < small.settings.subgroups.size(); ++s) {
            handler->wait_parameters(s);
        }
        handler->finish();
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

// A device whose parameters land at once, except those of one subgroup, which never do.
class UndeliveredDevice : public Device {
public:
    UndeliveredDevice(std::vector<shard::Subgroup> subgroups, std::size_t undelivered)
        : subgroups_(std::move(subgroups)), undelivered_(undelivered) {}

    const std::string& name() const override { return name_; }
    const std::vector<shard::Subgroup>& subgroups() const override { return subgroups_; }
    int slots() const override { return 5; }
    std::string describe_io() const override { return ""; }
    std::vector<std::uint64_t> written_bytes() const override { return {}; }
    void reserve() override {}
    Ticket flush() override { return {}; }
    void use_codec(const codec::Codec&) override {}
    void use_groups(const GroupMap&) override {}
    void put_gradient(std::size_t, std::span<const std::span<const std::byte>>,
                      std::span<const float>) override {}
    void finish_gradients() override {}
    void allocate_slot(int) override {}
    void release_slot(int) override {}
    Ticket read(int, std::size_t, std::int64_t) override { return {}; }
    void update(int, std::size_t, const StepScalars&, std::span<std::byte>) override {}
    Ticket deliver(int, std::size_t subgroup, std::span<std::byte>, const Landed& landed) override {
        return lane_.submit([this, subgroup, landed] {
            if (subgroup == undelivered_) {
                throw XrtError("a card that failed");
            }
            landed();
        });
    }
    // The last subgroup's write ends only after all deliveries.
    Ticket write(int, std::size_t subgroup, std::int64_t) override {
        return subgroup + 1 < subgroups_.size() ? Ticket() : lane_.submit([this] {
            all_delivered.set_value();
            go_on.get_future().wait();
        });
    }
    void read_state(std::size_t, std::int64_t, const StateArrays&) override {}
    void write_state(std::size_t, std::int64_t, const StateArrays&) override {}
    Ticket read_masters(std::size_t, std::int64_t, std::size_t, std::span<std::byte>) override {
        return {};
    }

    std::promise<void> all_delivered;
    std::promise<void> go_on;

private:
    std::string name_ = "device under test";
    std::vector<shard::Subgroup> subgroups_;
    std::size_t undelivered_;
    Executor lane_{1};
};

TEST(TransferHandlerTest, NeverShowsParametersThatDidNotLand) {
    UndeliveredDevice device(small_subgroups(), 1);
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, device);
    std::vector<std::byte> vector;
    handler->start(test_scalars(), 0, vector);
    device.all_delivered.get_future().wait();
    // The error may already be known, but the subgroup is never reported as landed.
    try {
        EXPECT_FALSE(handler->has_parameters(1));
    } catch (const XrtError&) {
        SUCCEED();
    }
    device.go_on.set_value();
    EXPECT_THROW(handler->wait_parameters(1), XrtError);
    EXPECT_THROW(handler->finish(), XrtError);
}

// A device whose first two slots are for what is read ahead.
class ReadAheadDevice : public UndeliveredDevice {
public:
    using UndeliveredDevice::UndeliveredDevice;

    int ahead_slots() const override { return 2; }
    Ticket read(int slot, std::size_t subgroup, std::int64_t) override {
        read_.emplace_back(subgroup, slot);
        return {};
    }
    Ticket write(int, std::size_t, std::int64_t) override { return {}; }

    std::vector<std::pair<std::size_t, int>> take_read() { return std::exchange(read_, {}); }

private:
    std::vector<std::pair<std::size_t, int>> read_;  // by the handler's thread alone
};

TEST(TransferHandlerTest, UsesSlotsOfWhatIsReadAheadForNothingElse) {
    constexpr std::size_t kSubgroups = 12;
    std::vector<shard::Subgroup> subgroups;
    for (std::size_t s = 0; s < kSubgroups; ++s) {
        subgroups.push_back({.tiles = {s, s + 1}});
    }
    ReadAheadDevice device(subgroups, kSubgroups);  // all are delivered
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, device);
    for (const ReadAhead order : {ReadAhead::from_first, ReadAhead::from_last}) {
        handler->read_ahead(0, order);
        handler->start(test_scalars(), 0, {});
        handler->finish();
        std::set<std::size_t> seen;
        std::size_t place = 0;
        for (const auto& [subgroup, slot] : device.take_read()) {
            EXPECT_EQ(slot < 2, place < 2) << "subgroup " << subgroup;
            EXPECT_EQ(seen.size(), place++) << "each subgroup once";
            seen.insert(subgroup);
        }
        EXPECT_EQ(seen.size(), kSubgroups);
    }
    handler->start(test_scalars(), 0, {});
    handler->finish();
    for (const auto& [subgroup, slot] : device.take_read()) {
        EXPECT_GE(slot, 2) << "subgroup " << subgroup;
    }
}

// A device whose operations end only once another stage has begun: the write of a subgroup ends
// when the next one is updated, and its delivery when its write has begun. A handler that does one
// thing after another would wait for ever, so that each wait ends after a while and is counted.
class EntwinedDevice : public UndeliveredDevice {
public:
    explicit EntwinedDevice(std::vector<shard::Subgroup> subgroups)
        : UndeliveredDevice(std::move(subgroups), kNone) {}

    int slots() const override { return 3; }
    Ticket read(int, std::size_t, std::int64_t) override {
        const std::lock_guard lock(mutex_);
        ++reads_;
        return {};
    }
    void update(int, std::size_t, const StepScalars&, std::span<std::byte>) override {
        const std::lock_guard lock(mutex_);
        reads_before_update.push_back(reads_);
        ++updates_;
        changed_.notify_all();
    }
    Ticket deliver(int, std::size_t, std::span<std::byte>, const Landed& landed) override {
        return deliveries_.submit([this, landed, number = ++delivered_] {
            await(writes_, number);
            landed();
        });
    }
    Ticket write(int, std::size_t, std::int64_t) override {
        const std::lock_guard lock(mutex_);
        const std::size_t next = std::min(++writes_ + 1, subgroups().size());
        changed_.notify_all();
        return written_.submit([this, next] { await(updates_, next); });
    }

    std::vector<std::size_t> reads_before_update;
    std::size_t given_up = 0;  // waits for what did not begin

private:
    static constexpr std::size_t kNone = 1000;

    void await(const std::size_t& count, std::size_t least) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, std::chrono::seconds(5), [&] { return count >= least; })) {
            ++given_up;
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t reads_ = 0;
    std::size_t updates_ = 0;
    std::size_t writes_ = 0;
    std::size_t delivered_ = 0;  // used by the handler's thread alone
    Executor deliveries_{1};
    Executor written_{1};
};

TEST(TransferHandlerTest, ReadsUpdatesDeliversAndWritesDifferentSubgroupsAtOnce) {
    EntwinedDevice device(small_subgroups());
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, device);
    std::vector<std::byte> vector;
    handler->start(test_scalars(), 0, vector);
    handler->finish();
    EXPECT_EQ(device.given_up, 0U);
    EXPECT_THAT(device.reads_before_update, testing::ElementsAre(2, 3, 3));
}

TEST(TransferHandlerTest, UpdatesWhatIsReleasedWhileGradientsArrive) {
    SmallDevice small({});
    small.initialise();
    SmallDevice whole({});
    whole.initialise();
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, *small.device);
    const auto plain = std::make_unique<TransferHandler>(HandlerKind::overlapped, *whole.device);
    for (int step = 0; step < kHandledSteps; ++step) {
        whole.put_gradients(step);
        plain->start(test_scalars(), step, whole.vector);
        plain->finish();

        // Each subgroup is updated before the gradients of the previous one arrive.
        handler->begin(test_scalars(), step, small.vector);
        for (std::size_t left = small.settings.subgroups.size(); left-- > 0;) {
            EXPECT_FALSE(handler->has_parameters(left));
            const shard::TileRange tiles = small.settings.subgroups[left].tiles;
            for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
                small.put_gradient(tile, static_cast<std::uint64_t>(step));
            }
            small.device->finish_gradients();
            handler->release(left);
            handler->wait_parameters(left);
        }
        handler->finish();
    }
    EXPECT_TRUE(small.states(kHandledSteps) == whole.states(kHandledSteps));
    EXPECT_TRUE(small.vector == whole.vector);
}

// How an update follows what was read ahead.
enum class Follows { at_once, in_backward, after_a_drop, after_a_cancel };

Outcome train_ahead(const SmallDeviceSettings& settings, ReadAhead order, Follows follows) {
    SmallDevice small(settings);
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, *small.device);
    for (int step = 0; step < kHandledSteps; ++step) {
        handler->read_ahead(step, order);
        small.put_gradients(step);
        if (follows == Follows::after_a_drop) {
            handler->drop_read_ahead();
        } else if (follows == Follows::after_a_cancel) {
            handler->begin(test_scalars(), step, small.vector);
            handler->release(2);
            handler->cancel();
            handler->finish();
            handler->read_ahead(step, order);
        }
        handler->begin(test_scalars(), step, small.vector);
        for (std::size_t left = 3; follows == Follows::in_backward && left-- > 1;) {
            handler->release(left);
        }
        handler->release(0);
        handler->finish();
    }
    handler->read_ahead(kHandledSteps, order);  // and is destroyed
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
    SmallDevice small({.slots = 3});
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, *small.device);
    const auto bytes = [&] { return small.traffic.snapshot()[trace::Counter::internal_read]; };
    handler->read_ahead(0, ReadAhead::from_last);
    handler->drop_read_ahead();  // waits
    // The last two subgroups have one and three tiles.
    EXPECT_EQ(bytes(), state_bytes(StateFormat::fp32, 4));
    handler->read_ahead(0, ReadAhead::from_first);
    EXPECT_THROW(handler->read_ahead(0, ReadAhead::from_first), ContractError);
    EXPECT_THROW(handler->begin(test_scalars(), 1, small.vector), ContractError);
}

TEST(TransferHandlerTest, SurfacesDamageThatWasReadAheadInTheUpdate) {
    SmallDevice small({});
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, *small.device);
    const StateLayout layout(small.settings.subgroups, StateFormat::fp32, false);
    const std::int64_t damaged = layout.extent_offset(1, 0) + 4096 + 99;
    flip_bit(small.settings.files[0], damaged);
    handler->read_ahead(0, ReadAhead::from_first);
    EXPECT_NO_THROW(handler->drop_read_ahead());
    handler->read_ahead(0, ReadAhead::from_first);
    small.put_gradients(0);
    handler->start(test_scalars(), 0, small.vector);
    EXPECT_THROW(handler->finish(), IoError);
    // After the repair the same update succeeds.
    flip_bit(small.settings.files[0], damaged);
    handler->read_ahead(0, ReadAhead::from_first);
    handler->start(test_scalars(), 0, small.vector);
    EXPECT_NO_THROW(handler->finish());
}

TEST(TransferHandlerTest, LeavesTheOldStateWholeWhenItIsCancelled) {
    for (const HandlerKind kind : {HandlerKind::naive, HandlerKind::overlapped}) {
        SmallDevice small({});
        small.initialise();
        const std::vector<State> before = small.states(0);
        small.put_gradients(0);
        const auto handler = std::make_unique<TransferHandler>(kind, *small.device);
        handler->begin(test_scalars(), 0, small.vector);
        handler->release(2);
        handler->wait_parameters(2);
        handler->cancel();
        handler->finish();
        EXPECT_FALSE(handler->has_parameters(0));
        EXPECT_TRUE(small.states(0) == before);
        EXPECT_THROW(small.states(1), IoError);
        // Repeats the same generation.
        handler->start(test_scalars(), 0, small.vector);
        handler->finish();
        EXPECT_NO_THROW(small.states(1));
    }
}

class HandlerOf : public testing::TestWithParam<HandlerKind> {};

TEST_P(HandlerOf, ShowsTheNewParametersOnceItSaysSo) {
    SmallDevice small({});
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(GetParam(), *small.device);
    small.put_gradients(0);
    handler->start(test_scalars(), 0, small.vector);
    handler->wait_parameters(1);
    EXPECT_TRUE(handler->has_parameters(0));
    EXPECT_TRUE(handler->has_parameters(1));
    const std::size_t begin = small.settings.subgroups[1].tiles.begin * shard::kTileElems * 2;
    const std::size_t end = small.settings.subgroups[1].tiles.end * shard::kTileElems * 2;
    const std::vector<std::byte> early(small.vector.begin() + static_cast<std::ptrdiff_t>(begin),
                                       small.vector.begin() + static_cast<std::ptrdiff_t>(end));
    handler->finish();
    EXPECT_TRUE(handler->has_parameters(2));
    State state(3);
    small.device->read_state(1, 1, state.arrays());
    std::vector<std::byte> expected(early.size());
    convert_from_fp32(state.master.data(), Dtype::bf16, expected.data(), state.master.size());
    EXPECT_TRUE(early == expected);
}

TEST_P(HandlerOf, SurfacesADamagedByteInEveryCallAndKeepsTheOldState) {
    SmallDevice small({});
    small.initialise();
    const std::vector<State> before = small.states(0);
    const auto handler = std::make_unique<TransferHandler>(GetParam(), *small.device);
    small.put_gradients(0);
    const StateLayout layout(small.settings.subgroups, StateFormat::fp32, false);
    const std::int64_t damaged = layout.extent_offset(1, 0) + 4096 + 99;
    flip_bit(small.settings.files[0], damaged);
    handler->start(test_scalars(), 0, small.vector);
    EXPECT_THAT(message_of<IoError>([&] { handler->wait_parameters(2); }), HasSubstr("subgroup 1"));
    EXPECT_THROW(handler->has_parameters(2), IoError);
    EXPECT_THROW(handler->finish(), IoError);
    EXPECT_THROW(handler->finish(), IoError);
    // After the repair the same update succeeds, because generation 0 was not overwritten.
    flip_bit(small.settings.files[0], damaged);
    EXPECT_TRUE(small.states(0) == before);
    handler->start(test_scalars(), 0, small.vector);
    EXPECT_NO_THROW(handler->finish());
    EXPECT_NO_THROW(small.states(1));
}

TEST_P(HandlerOf, SurfacesAnErrorOfALaneInFinish) {
    SmallDevice small({.place = UpdatePlace::on_host, .files = 2});
    small.initialise();
    const auto handler = std::make_unique<TransferHandler>(GetParam(), *small.device);
    small.put_gradients(0);
    std::filesystem::resize_file(small.settings.files[1], 0);
    handler->start(test_scalars(), 0, small.vector);
    EXPECT_THAT(message_of<IoError>([&] { handler->finish(); }),
                HasSubstr(small.settings.files[1]));
}

TEST_P(HandlerOf, MayBeDestroyedDuringAnUpdate) {
    SmallDevice small({});
    small.initialise();
    small.put_gradients(0);
    {
        const auto handler = std::make_unique<TransferHandler>(GetParam(), *small.device);
        handler->start(test_scalars(), 0, small.vector);
    }
    EXPECT_NO_THROW(small.states(1));
    const auto next = std::make_unique<TransferHandler>(GetParam(), *small.device);
    next->start(test_scalars(), 1, small.vector);
    EXPECT_NO_THROW(next->finish());
}

INSTANTIATE_TEST_SUITE_P(Kinds, HandlerOf,
                         testing::Values(HandlerKind::naive, HandlerKind::overlapped),
                         [](const testing::TestParamInfo<HandlerKind>& kind) {
                             return std::string(kind.param == HandlerKind::naive ? "Naive"
                                                                                 : "Overlapped");
                         });

}  // namespace
}  // namespace nearstep::csd
