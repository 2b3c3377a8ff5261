#include "csd/traced_device.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::csd {

namespace {

using trace::Lane;
using trace::Timeline;

class TracedDevice : public Device {
public:
    TracedDevice(std::unique_ptr<Device> device, int number, Timeline& timeline)
        : device_(std::move(device)),
          number_(number),
          timeline_(&timeline),
          moving_(static_cast<std::size_t>(device_->slots())),
          landing_(moving_.size()) {}

    const std::string& name() const override { return device_->name(); }
    const std::vector<shard::Subgroup>& subgroups() const override { return device_->subgroups(); }
    int slots() const override { return device_->slots(); }
    int kept_slots() const override { return device_->kept_slots(); }
    std::string describe_io() const override { return device_->describe_io(); }
    std::vector<std::uint64_t> written_bytes() const override { return device_->written_bytes(); }
    void reserve() override { device_->reserve(); }
    void expect_updates() override { device_->expect_updates(); }
    Ticket flush() override { return device_->flush(); }
    void use_codec(const codec::Codec& codec) override { device_->use_codec(codec); }
    void use_groups(const GroupMap& groups) override { device_->use_groups(groups); }
    void put_gradient(std::size_t tile, std::span<const std::span<const std::byte>> payloads,
                      std::span<const float> sum) override {
        device_->put_gradient(tile, payloads, sum);
    }
    bool takes_tiles_in_order() const override { return device_->takes_tiles_in_order(); }
    void finish_gradients() override { device_->finish_gradients(); }
    void allocate_slot(int slot) override { device_->allocate_slot(slot); }
    void release_slot(int slot) override { device_->release_slot(slot); }

    Ticket read(int slot, std::size_t subgroup, std::int64_t generation) override {
        const Timeline::Clock::time_point asked = Timeline::Clock::now();
        Ticket& moving = of_slot(moving_, slot);
        moving = device_->read(slot, subgroup, generation);
        return reads_.submit([this, &moving, subgroup, asked] {
            finish(moving, {Lane::device_read, "read", subgroup}, asked, last_read_);
        });
    }
    void update(int slot, std::size_t subgroup, const StepScalars& scalars,
                std::span<std::byte> landing) override {
        const trace::Span span(timeline_, Lane::engine, "update", subject(subgroup));
        device_->update(slot, subgroup, scalars, landing);
    }
    Ticket deliver(int slot, std::size_t subgroup, std::span<std::byte> landing,
                   const Landed& landed) override {
        const Timeline::Clock::time_point asked = Timeline::Clock::now();
        Ticket& delivery = of_slot(landing_, slot);
        delivery = device_->deliver(slot, subgroup, landing, landed);
        return copies_.submit([this, &delivery, subgroup, asked] {
            finish(delivery, {Lane::copy, "deliver", subgroup}, asked, last_copy_);
        });
    }
    Ticket write(int slot, std::size_t subgroup, std::int64_t generation) override {
        const Timeline::Clock::time_point asked = Timeline::Clock::now();
        Ticket& moving = of_slot(moving_, slot);
        moving = device_->write(slot, subgroup, generation);
        return writes_.submit([this, &moving, subgroup, asked] {
            finish(moving, {Lane::device_write, "write", subgroup}, asked, last_write_);
        });
    }

    void read_state(std::size_t subgroup, std::int64_t generation,
                    const StateArrays& state) override {
        device_->read_state(subgroup, generation, state);
    }
    void write_state(std::size_t subgroup, std::int64_t generation,
                     const StateArrays& state) override {
        device_->write_state(subgroup, generation, state);
    }

private:
    struct Stage {
        Lane lane;
        const char* name;
        std::size_t subgroup;
    };

    trace::Subject subject(std::size_t subgroup) const {
        return {.kind = "subgroup", .number = subgroup, .device = number_};
    }

    static Ticket& of_slot(std::vector<Ticket>& tickets, int slot) {
        return tickets[static_cast<std::size_t>(slot)];
    }

    void finish(Ticket& ticket, const Stage& stage, Timeline::Clock::time_point asked,
                Timeline::Clock::time_point& last) {
        ticket.wait();
        const Timeline::Clock::time_point now = Timeline::Clock::now();
        timeline_->add(stage.lane, stage.name, subject(stage.subgroup), std::max(asked, last), now);
        last = now;
    }

    std::unique_ptr<Device> device_;
    int number_;
    Timeline* timeline_;
    // The last read or write, and the last delivery, of each slot. The caller waits for them before
    // it starts the slot's next stage.
    std::vector<Ticket> moving_;
    std::vector<Ticket> landing_;
    // Each is used by one lane only.
    Timeline::Clock::time_point last_read_;
    Timeline::Clock::time_point last_copy_;
    Timeline::Clock::time_point last_write_;
    store::Worker reads_;  // last, so that they end first
    store::Worker copies_;
    store::Worker writes_;
};

}  // namespace

std::unique_ptr<Device> make_traced_device(std::unique_ptr<Device> device, int number,
                                           trace::Timeline& timeline) {
    return std::make_unique<TracedDevice>(std::move(device), number, timeline);
}

}  // namespace nearstep::csd
