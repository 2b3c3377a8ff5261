// The device of a card: its slots, transfers and kernel runs. Made by the engine.
#include "csd/card_device.hpp"

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "codec/delta.hpp"
#include "csd/card_groups.hpp"
#include "csd/card_payloads.hpp"
#include "csd/card_slot.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::csd {

namespace {

using trace::Counter;

void check_groups(const DeviceSettings& settings, const GroupMap& groups) {
    for (std::size_t subgroup = 0; subgroup < settings.subgroups.size(); ++subgroup) {
        const auto end = find_uneven_end(groups, settings.subgroups[subgroup].tiles);
        if (end) {
            throw ConfigError(
                text("A card updates 16 elements at a time by the settings of one "
                     "parameter group, and in subgroup ",
                     subgroup, " of device \"", settings.name, "\" a group ends at element ", *end,
                     ", which is no multiple of 16: set csd.device = \"emulated\", "
                     "or name the device in csd.host_engine."));
        }
    }
}

class CardDevice : public StoredDevice {
public:
    CardDevice(const DeviceSettings& settings, fpga::Card card, trace::Traffic& traffic);

    std::string describe_io() const override;
    void use_codec(const codec::Codec& codec) override { payloads_.use(codec); }
    void use_groups(const GroupMap& groups) override;
    void put_gradient(std::size_t tile, Payloads payloads, std::span<const float> sum) override;
    void finish_gradients() override { payloads_.finish(); }
    void allocate_slot(int slot) override;
    void release_slot(int slot) override;
    Ticket read(int slot, std::size_t subgroup, std::int64_t generation) override;
    void update(int slot, std::size_t subgroup, const StepScalars& scalars,
                std::span<std::byte> destination) override;
    Ticket deliver(int slot, std::size_t subgroup, std::span<std::byte> destination,
                   const DeliveryCallback& on_delivered) override;
    Ticket write(int slot, std::size_t subgroup, std::int64_t generation) override;

private:
    CardSlot& allocated(int slot);
    CardSlotSizes slot_sizes() const;
    std::size_t group_words(const GroupMap& groups) const;
    std::string describe(std::size_t subgroup) const {
        return text("subgroup ", subgroup, " of device \"", settings_.name, "\"");
    }
    void finish_read(CardSlot& slot, std::size_t subgroup, std::int64_t generation);
    Ticket start_write(CardSlot& slot, std::size_t subgroup, std::int64_t generation);

    std::size_t slot_words_;  // words of each slot's group table
    fpga::Card card_;
    bool is_peer_to_peer_;
    CardPayloads payloads_;
    std::vector<std::unique_ptr<CardSlot>> slots_;
    // Threads that wait for the card: for updates one behind the other, and for what reads,
    // deliveries and writes ask of it. Declared last, so that they end first.
    Executor engine_{1};
    Executor stages_{3};
};

CardDevice::CardDevice(const DeviceSettings& settings, fpga::Card card, trace::Traffic& traffic)
    : StoredDevice(settings, traffic),
      slot_words_(group_words(settings.groups)),
      card_(std::move(card)),
      is_peer_to_peer_(card_.has_peer_to_peer() && state_.volume().is_direct()),
      payloads_(card_, state_.layout(), settings.subgroups.size(),
                std::max(settings.most_payload_bytes, settings.codec->payload_bytes()),
                static_cast<std::size_t>(settings.sources)),
      slots_(static_cast<std::size_t>(settings.slots)) {
    payloads_.use(*settings.codec);
    if (card_.has_peer_to_peer() && !is_peer_to_peer_) {
        log_event("no_peer_to_peer", {{"card", card_.name()},
                                      {"instead", "state passes through host memory"},
                                      {"reason", "the file system of " + settings.files.front() +
                                                     " has no direct I/O"}});
    }
    // The thread that opens all cards also makes each card's first runs.
    const CardSlot first(card_, slot_sizes(), is_peer_to_peer_);
}

// Words of the largest table that an update of a subgroup needs.
std::size_t CardDevice::group_words(const GroupMap& groups) const {
    std::size_t words = 0;
    for (const shard::Subgroup& subgroup : settings_.subgroups) {
        words = std::max(words, group_table_words(groups, subgroup.tiles));
    }
    return words;
}

void CardDevice::use_groups(const GroupMap& groups) {
    check_groups(settings_, groups);
    if (group_words(groups) > slot_words_) {
        throw ConfigError(
            text("Device \"", name(),
                 "\" has no room in its slots for this many changes of the "
                 "parameter group: set csd.device = \"emulated\", or freeze parameters before the "
                 "run begins."));
    }
    settings_.groups = groups;
}

CardSlotSizes CardDevice::slot_sizes() const {
    const std::size_t tiles = layout().most_tiles();
    return {.payload_bytes = layout().most_extent_bytes() - store::kHeaderBytes,
            .parameter_bytes = has_deltas() ? message_room_bytes() : tiles * tile_parameter_bytes(),
            .tiles = tiles,
            .group_words = slot_words_};
}

std::string CardDevice::describe_io() const {
    const CardSlotSizes sizes = slot_sizes();
    const std::size_t bytes = slots_.size() * (sizes.payload_bytes + sizes.parameter_bytes);
    return text(describe_transport(), ", ",
                is_peer_to_peer_ ? "peer to peer with" : "by way of the host (no peer to peer) to",
                " card ", card_.name(), ", ", card_.units(fpga::kKernels[0]),
                " updaters, slots of ", human_bytes(static_cast<double>(bytes)));
}

CardSlot& CardDevice::allocated(int slot) {
    const auto& found = slots_.at(static_cast<std::size_t>(slot));
    expects(found != nullptr, "a slot is allocated before it is used");
    return *found;
}

void CardDevice::put_gradient(std::size_t tile, Payloads payloads, std::span<const float>) {
    const std::size_t local = state_.local_tile(tile);
    const std::size_t subgroup = layout().subgroup_of(local);
    traffic_->add(Counter::host_gradients_write, payloads_.put(subgroup, local, payloads));
}

void CardDevice::allocate_slot(int slot) {
    auto& made = slots_.at(static_cast<std::size_t>(slot));
    expects(made == nullptr, "a slot is allocated once");
    made = std::make_unique<CardSlot>(card_, slot_sizes(), is_peer_to_peer_);
}

void CardDevice::release_slot(int slot) { slots_.at(static_cast<std::size_t>(slot)).reset(); }

Ticket CardDevice::read(int slot, std::size_t subgroup, std::int64_t generation) {
    CardSlot& s = allocated(slot);
    const std::int64_t offset = layout().extent_offset(subgroup, generation);
    const std::size_t bytes = layout().payload_bytes(subgroup);
    // One request never mixes memory of the host and of the card.
    Ticket reading = state_.volume().read(s.header.span(), offset);
    reading.add(state_.volume().read(s.state.host().first(bytes),
                                     offset + static_cast<std::int64_t>(store::kHeaderBytes)));
    return stages_.after(std::move(reading), [this, &s, subgroup, generation] {
        finish_read(s, subgroup, generation);
    });
}

void CardDevice::finish_read(CardSlot& slot, std::size_t subgroup, std::int64_t generation) {
    const std::size_t bytes = layout().payload_bytes(subgroup);
    if (is_peer_to_peer_) {
        traffic_->add(Counter::internal_read, bytes);
    } else {
        slot.state.to_card(0, bytes);
        traffic_->add(Counter::host_state_read, bytes);
        traffic_->add(Counter::host_state_write, bytes);
    }
    // Cheap checks first: the payload of another owner is not digested.
    const store::SubgroupHeader header = state_.header_of(subgroup, generation);
    auto fault = store::find_page_fault(header, slot.header.span(), bytes, std::nullopt);
    if (!fault && settings_.digest == store::PayloadDigest::present) {
        const std::uint64_t digest =
            slot.verifying.digest(slot.state, bytes, "to verify " + describe(subgroup));
        fault = store::find_page_fault(header, slot.header.span(), bytes, digest);
    }
    if (fault) {
        state_.refuse(*fault, subgroup, generation);
    }
}

void CardDevice::update(int slot, std::size_t subgroup, const StepScalars& scalars,
                        std::span<std::byte> /*destination*/) {
    CardSlot& s = allocated(slot);
    const shard::Subgroup& own = settings_.subgroups[subgroup];
    s.start_update({.tiles = own.tiles.size(),
                    .first_tile = own.tiles.begin,
                    .format = settings_.state,
                    .parameter_dtype = settings_.parameter_dtype,
                    .delivery = settings_.delivery,
                    .gradient = *payloads_.codec().kernel_form(),
                    .sources = static_cast<std::uint32_t>(settings_.sources),
                    .payloads = payloads_.place_of(subgroup)},
                   group_table(settings_.groups, scalars, own.tiles));
    s.updated = Completion();
    s.updating = s.updated.ticket();
    engine_.submit([this, &s, subgroup] { s.finish_update("to update " + describe(subgroup)); })
        .on_complete([updated = s.updated](const std::exception_ptr& error) {
            updated.complete(error);  // the delivery and the write get the error
        });
}

Ticket CardDevice::deliver(int slot, std::size_t subgroup, std::span<std::byte> destination,
                           const DeliveryCallback& on_delivered) {
    CardSlot& s = allocated(slot);
    return stages_.after(s.updated.ticket(), [this, &s, subgroup, destination, on_delivered] {
        const std::size_t bytes = s.parameter_bytes();
        const std::size_t moved = round_up(bytes, fpga::kWordBytes);
        const std::span<std::byte> place = place_of(destination, subgroup, bytes);
        s.parameters.from_card(0, moved);
        std::ranges::copy(s.parameters.host().first(bytes), place.begin());
        traffic_->add(Counter::host_parameters, moved);
        on_delivered();
    });
}

Ticket CardDevice::write(int slot, std::size_t subgroup, std::int64_t generation) {
    CardSlot& s = allocated(slot);
    Ticket written = stages_.after(s.updated.ticket(), [this, &s, subgroup, generation] {
        return start_write(s, subgroup, generation);
    });
    return written.then([this, subgroup] {
        const std::size_t bytes = layout().payload_bytes(subgroup);
        if (is_peer_to_peer_) {
            traffic_->add(Counter::internal_write, bytes);
        } else {
            traffic_->add(Counter::host_state_read, bytes);
            traffic_->add(Counter::host_state_write, bytes);
        }
    });
}

Ticket CardDevice::start_write(CardSlot& slot, std::size_t subgroup, std::int64_t generation) {
    const std::size_t bytes = layout().payload_bytes(subgroup);
    const std::uint64_t digest =
        settings_.digest == store::PayloadDigest::present
            ? slot.sealing_digest.digest(slot.state, bytes, "to seal " + describe(subgroup))
            : 0;
    store::seal_page(state_.header_of(subgroup, generation), slot.header.span(), bytes, digest);
    if (!is_peer_to_peer_) {
        slot.state.from_card(0, bytes);
    }
    const std::int64_t offset = layout().extent_offset(subgroup, generation);
    Ticket writing = state_.volume().write(slot.header.span(), offset);
    writing.add(state_.volume().write(slot.state.host().first(bytes),
                                      offset + static_cast<std::int64_t>(store::kHeaderBytes)));
    return writing;
}

}  // namespace

std::unique_ptr<Device> make_card_device(const DeviceSettings& settings,
                                         const fpga::CardSettings& card, trace::Traffic& traffic) {
    expects(settings.place == UpdatePlace::near_storage, "a card updates state near its drive");
    const auto largest = std::ranges::max_element(
        settings.subgroups, {}, [](const shard::Subgroup& s) { return s.tiles.size(); });
    if (largest != settings.subgroups.end() && largest->tiles.size() > fpga::kMostSubgroupTiles) {
        throw ConfigError(text("A card updates ", fpga::kMostSubgroupTiles,
                               " tiles at once, and a subgroup has ", largest->tiles.size(),
                               ": lower csd.subgroup_tiles."));
    }
    check_groups(settings, settings.groups);
    prepare_storage(settings);
    try {
        return std::make_unique<CardDevice>(settings, fpga::Card(card), traffic);
    } catch (const XrtError& failure) {
        // No work has started, so the cause is the machine or the settings.
        throw ConfigError(failure.what());
    }
}

}  // namespace nearstep::csd
