// A device that only moves data. Used by csd_row.cpp as the ceiling of the others.
#include "bench/raw_device.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "csd/state_format.hpp"
#include "csd/state_layout.hpp"
#include "memory/buffer.hpp"
#include "store/folder.hpp"
#include "store/subgroup_header.hpp"
#include "store/volume.hpp"

#include <span>

namespace nearstep::bench {

namespace {

using csd::StateArrays;

class RawDevice : public csd::Device {
public:
    explicit RawDevice(const RawDeviceSettings& settings)
        : settings_(settings),
          layout_(settings.subgroups, settings.state, false),
          slots_(static_cast<std::size_t>(settings.slots)),
          volume_({.files = {settings.file}, .bytes = layout_.total_bytes(), .io = settings.io}) {}

    const std::string& name() const override { return settings_.name; }
    const std::vector<shard::Subgroup>& subgroups() const override { return settings_.subgroups; }
    int slots() const override { return settings_.slots; }
    std::string describe_io() const override { return store::name_of(volume_.io()); }
    std::vector<std::uint64_t> written_bytes() const override { return volume_.written_bytes(); }
    void reserve() override { volume_.reserve(); }
    Ticket flush() override { return volume_.sync(); }

    void use_codec(const codec::Codec&) override {}
    void use_groups(const csd::GroupMap&) override {}
    void put_gradient(std::size_t, std::span<const std::span<const std::byte>>,
                      std::span<const float>) override {}
    void finish_gradients() override {}
    void update(int, std::size_t, const csd::StepScalars&, std::span<std::byte>) override {}
    Ticket deliver(int, std::size_t, std::span<std::byte>, const Landed& landed) override {
        landed();
        return {};
    }

    void allocate_slot(int slot) override {
        slots_.at(static_cast<std::size_t>(slot)) = memory::Buffer(most_bytes());
    }
    void release_slot(int slot) override {
        slots_.at(static_cast<std::size_t>(slot)) = memory::Buffer();
    }
    Ticket read(int slot, std::size_t subgroup, std::int64_t generation) override {
        return volume_.read(extent_in(slot, subgroup), layout_.extent_offset(subgroup, generation));
    }
    Ticket write(int slot, std::size_t subgroup, std::int64_t generation) override {
        return volume_.write(extent_in(slot, subgroup),
                             layout_.extent_offset(subgroup, generation));
    }

    void read_state(std::size_t subgroup, std::int64_t generation,
                    const StateArrays& state) override;
    void write_state(std::size_t subgroup, std::int64_t generation,
                     const StateArrays& state) override;
    Ticket read_masters(std::size_t subgroup, std::int64_t generation, std::size_t first,
                        std::span<std::byte> to) override {
        return volume_.read(to, layout_.extent_offset(subgroup, generation) +
                                    static_cast<std::int64_t>(
                                        store::kHeaderBytes +
                                        first * size_bytes(csd::master_dtype(layout_.format()))));
    }

private:
    std::size_t most_bytes() const { return layout_.most_extent_bytes(); }
    std::span<std::byte> extent_in(int slot, std::size_t subgroup) {
        return slots_.at(static_cast<std::size_t>(slot))
            .span()
            .first(layout_.extent_bytes(subgroup));
    }

    std::span<std::byte> payload_in(memory::Buffer& memory, std::size_t subgroup) const {
        return memory.span().subspan(store::kHeaderBytes, layout_.payload_bytes(subgroup));
    }

    RawDeviceSettings settings_;
    csd::StateLayout layout_;
    std::vector<memory::Buffer> slots_;
    store::Volume volume_;
};

void RawDevice::read_state(std::size_t subgroup, std::int64_t generation,
                           const StateArrays& state) {
    memory::Buffer memory(layout_.extent_bytes(subgroup));
    volume_.read(memory.span(), layout_.extent_offset(subgroup, generation)).wait();
    csd::widen(layout_.format(), payload_in(memory, subgroup), state);
}

void RawDevice::write_state(std::size_t subgroup, std::int64_t generation,
                            const StateArrays& state) {
    memory::Buffer memory(layout_.extent_bytes(subgroup));
    csd::narrow(layout_.format(), state, payload_in(memory, subgroup));
    volume_.write(memory.span(), layout_.extent_offset(subgroup, generation)).wait();
}

}  // namespace

std::unique_ptr<csd::Device> make_raw_device(const RawDeviceSettings& settings) {
    const csd::StateLayout layout(settings.subgroups, settings.state, false);
    store::check_folders({{settings.file, layout.total_bytes()}});
    return std::make_unique<RawDevice>(settings);
}

}  // namespace nearstep::bench
