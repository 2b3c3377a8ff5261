// In which order a handler uses a device, and what it shows meanwhile: devices without storage that
// say when their operations end.
#include "csd/device_fixture.hpp"
#include "csd/transfer_handler.hpp"
#include "support/test.hpp"

#include <condition_variable>
#include <future>
#include <mutex>

namespace nearstep::csd {
namespace {

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
    Ticket deliver(int, std::size_t subgroup, std::span<std::byte>,
                   const DeliveryCallback& on_delivered) override {
        return lane_.submit([this, subgroup, on_delivered] {
            if (subgroup == undelivered_) {
                throw XrtError("a card that failed");
            }
            on_delivered();
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
    std::span<std::byte> room_for(std::size_t, std::int64_t, memory::Buffer&) override {
        return {};
    }
    void write_stored(std::size_t, std::int64_t, memory::Buffer&) override {}
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

TEST(HandlerOrder, NeverShowsParametersThatDidNotLand) {
    UndeliveredDevice device(small_subgroups(), 1);
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, device);
    std::vector<std::byte> vector;
    handler->start(test_scalars(), 0, vector);
    device.all_delivered.get_future().wait();
    // The error may already be known, but the subgroup is never reported as delivered.
    try {
        EXPECT_FALSE(handler->has_parameters(1));
    } catch (const XrtError&) {
        SUCCEED();
    }
    device.go_on.set_value();
    EXPECT_THROW(wait_parameters(*handler, 1), XrtError);
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

TEST(HandlerOrder, UsesSlotsOfWhatIsReadAheadForNothingElse) {
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
    Ticket deliver(int, std::size_t, std::span<std::byte>,
                   const DeliveryCallback& on_delivered) override {
        return deliveries_.submit([this, on_delivered, number = ++delivered_] {
            await(writes_, number);
            on_delivered();
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

TEST(HandlerOrder, ReadsUpdatesDeliversAndWritesDifferentSubgroupsAtOnce) {
    EntwinedDevice device(small_subgroups());
    const auto handler = std::make_unique<TransferHandler>(HandlerKind::overlapped, device);
    std::vector<std::byte> vector;
    handler->start(test_scalars(), 0, vector);
    handler->finish();
    EXPECT_EQ(device.given_up, 0U);
    EXPECT_THAT(device.reads_before_update, testing::ElementsAre(2, 3, 3));
}

}  // namespace
}  // namespace nearstep::csd
