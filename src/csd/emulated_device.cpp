#include "csd/emulated_device.hpp"

#include "base/error.hpp"
#include "codec/delta.hpp"
#include "csd/gradient_staging.hpp"
#include "csd/payload_memory.hpp"
#include "csd/state_format.hpp"
#include "csd/state_layout.hpp"
#include "memory/buffer.hpp"
#include "store/folder.hpp"
#include "store/subgroup_header.hpp"
#include "store/volume.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

namespace nearstep::csd {

namespace {

using trace::Counter;

constexpr std::size_t kPieceBytes = fpga::kPieceElems * sizeof(float);

StateLayout layout_of(const EmulatedDeviceSettings& settings) {
    return {settings.subgroups, settings.state, settings.place == UpdatePlace::on_host};
}

store::VolumeSettings volume_of(const EmulatedDeviceSettings& settings, const StateLayout& layout) {
    return {.files = settings.files,
            .bytes = layout.total_bytes(),
            .io = settings.io,
            .storage = settings.storage};
}

store::VolumeSettings shaped_volume_of(const EmulatedDeviceSettings& settings,
                                       const StateLayout& layout) {
    store::VolumeSettings volume = volume_of(settings, layout);
    if (settings.links != nullptr) {
        const auto place = settings.place == UpdatePlace::on_host
                               ? link::DrivePlace::behind_host_link
                               : link::DrivePlace::near_engine;
        for (std::size_t file = 0; file < settings.files.size(); ++file) {
            volume.paths.push_back(settings.links->add_drive(place));
        }
        volume.clock = &settings.links->clock();
    }
    return volume;
}

class EmulatedDevice : public Device {
public:
    EmulatedDevice(const EmulatedDeviceSettings& settings, trace::Traffic& traffic);

    const std::string& name() const override { return settings_.name; }
    const std::vector<shard::Subgroup>& subgroups() const override { return settings_.subgroups; }
    int slots() const override { return settings_.slots; }
    std::string describe_io() const override;
    std::vector<std::uint64_t> written_bytes() const override { return volume_.written_bytes(); }
    void reserve() override { volume_.reserve(); }
    Ticket flush() override { return volume_.sync(); }
    void use_codec(const codec::Codec& codec) override;
    void put_gradient(std::size_t tile, Payloads payloads, std::span<const float> sum) override;
    void finish_gradients() override;
    void allocate_slot(int slot) override;
    void release_slot(int slot) override;
    Ticket read(int slot, std::size_t subgroup, std::int64_t generation) override;
    void update(int slot, std::size_t subgroup, const UpdateScalars& scalars) override;
    void deliver(int slot, std::size_t subgroup, std::span<std::byte> landing) override;
    Ticket write(int slot, std::size_t subgroup, std::int64_t generation) override;
    void read_state(std::size_t subgroup, std::int64_t generation,
                    const StateArrays& state) override;
    void write_state(std::size_t subgroup, std::int64_t generation,
                     const StateArrays& state) override;

private:
    // Spans into one buffer, each with room for the largest subgroup.
    struct Slot {
        memory::Buffer memory;
        std::span<std::byte> extent;     // header and arrays of the format
        std::span<std::byte> gradients;  // on_host only
        std::span<float> piece;          // the sum of the payloads of a piece of a tile
        std::vector<std::span<const std::byte>> payloads;
        std::span<std::byte> parameters;  // new ones; with deltas a tile's old and new ones
        std::span<std::byte> message;     // with deltas
        std::size_t message_bytes = 0;
        Ticket reading;
        Ticket sealing;
        Ticket writing;  // from when sealing is complete
    };

    Slot& allocated(int slot);
    bool is_on_host() const { return settings_.place == UpdatePlace::on_host; }
    bool has_deltas() const { return settings_.delivery == Delivery::deltas; }
    std::size_t message_room_bytes() const {
        return codec::message_room_bytes(layout_.most_tiles());
    }
    std::size_t tile_parameter_bytes() const {
        return shard::kTileElems * size_bytes(settings_.parameter_dtype);
    }
    std::size_t local_tile(std::size_t tile) const;
    void cross_host_link(std::size_t bytes);
    void update_tile(Slot& slot, std::size_t subgroup, std::size_t tile,
                     const UpdateScalars& scalars, UpdateRun run);
    // The state in an extent, behind its header.
    std::span<std::byte> payload_of(std::span<std::byte> extent, std::size_t subgroup) const {
        return extent.subspan(store::kHeaderBytes, layout_.payload_bytes(subgroup));
    }
    store::SubgroupHeader header_of(std::size_t subgroup, std::int64_t generation) const;
    void verify(std::span<const std::byte> extent, std::size_t subgroup,
                std::int64_t generation) const;

    EmulatedDeviceSettings settings_;
    trace::Traffic* traffic_;
    StateLayout layout_;
    std::uint64_t layout_digest_;
    const Engine* engine_;
    std::optional<PayloadMemory> payloads_;  // near_storage only
    memory::Buffer transit_;                 // an extent on its way in or out, outside a step
    std::vector<Slot> slots_;
    store::Volume volume_;
    std::optional<GradientStaging> staging_;  // on_host only
    std::optional<link::Stream> gradients_;   // near_storage and shaped only
    // Checksums are made and verified here, beside the engine; last, so that they end first.
    store::Lane read_lane_;
    store::Lane seal_lane_;
    store::Lane write_lane_;
};

EmulatedDevice::EmulatedDevice(const EmulatedDeviceSettings& settings, trace::Traffic& traffic)
    : settings_(settings),
      traffic_(&traffic),
      layout_(layout_of(settings)),
      layout_digest_(StateLayout::digest(settings.name, settings.subgroups, settings.state)),
      engine_(&best_engine()),
      transit_(layout_.most_extent_bytes()),
      slots_(static_cast<std::size_t>(settings.slots)),
      volume_(shaped_volume_of(settings, layout_)) {
    if (is_on_host()) {
        staging_.emplace(volume_);
    } else {
        payloads_.emplace(*settings.codec, settings.most_payload_bytes, layout_.tiles(),
                          static_cast<std::size_t>(settings.sources));
        if (settings.links != nullptr) {
            gradients_.emplace(settings.links->to_storage(), settings.links->clock());
        }
    }
}

std::string EmulatedDevice::describe_io() const {
    std::size_t bytes = 0;
    std::size_t huge = 0;
    for (const Slot& slot : slots_) {
        bytes += slot.memory.size();
        huge += std::min(slot.memory.size(), slot.memory.huge_page_bytes());
    }
    return text(store::name_of(volume_.io()), volume_.is_direct() ? ", direct" : ", page cache",
                ", ", human_bytes(static_cast<double>(bytes)), " of buffers of which ",
                human_bytes(static_cast<double>(huge)), " on huge pages");
}

EmulatedDevice::Slot& EmulatedDevice::allocated(int slot) {
    Slot& found = slots_.at(static_cast<std::size_t>(slot));
    expects(!found.extent.empty(), "a slot is allocated before it is used");
    return found;
}

std::size_t EmulatedDevice::local_tile(std::size_t tile) const {
    const auto& subgroups = settings_.subgroups;
    const auto after = std::upper_bound(
        subgroups.begin(), subgroups.end(), tile,
        [](std::size_t wanted, const shard::Subgroup& s) { return wanted < s.tiles.begin; });
    expects(after != subgroups.begin() && tile < (after - 1)->tiles.end,
            "the tile belongs to the device");
    const auto subgroup = static_cast<std::size_t>(after - subgroups.begin()) - 1;
    return layout_.first_tile(subgroup) + tile - (after - 1)->tiles.begin;
}

void EmulatedDevice::use_codec(const codec::Codec& codec) {
    if (payloads_) {
        payloads_->use(codec);
    }
}

void EmulatedDevice::put_gradient(std::size_t tile, Payloads payloads, std::span<const float> sum) {
    const std::size_t local = local_tile(tile);
    if (is_on_host()) {
        staging_->put(sum,
                      layout_.gradient_offset(0) + static_cast<std::int64_t>(local * kTileBytes));
        traffic_->add(Counter::host_gradients_write, kTileBytes);
    } else {
        const std::size_t bytes = payloads_->put(local, payloads);
        traffic_->add(Counter::host_gradients_write, bytes);
        if (gradients_) {
            gradients_->add(bytes);
        }
    }
}

void EmulatedDevice::finish_gradients() {
    if (staging_) {
        staging_->finish();
    } else if (gradients_) {
        gradients_->wait();
    }
}

void EmulatedDevice::allocate_slot(int slot) {
    Slot& made = slots_.at(static_cast<std::size_t>(slot));
    expects(made.extent.empty(), "a slot is allocated once");
    const std::size_t tiles = layout_.most_tiles();
    const std::size_t extent_bytes = layout_.most_extent_bytes();
    const std::size_t gradient_bytes = is_on_host() ? tiles * kTileBytes : 0;
    const std::size_t parameter_bytes = (has_deltas() ? 2 : tiles) * tile_parameter_bytes();
    const std::size_t message_bytes = has_deltas() ? message_room_bytes() : 0;
    made.memory = memory::Buffer(extent_bytes + gradient_bytes + kPieceBytes + parameter_bytes +
                                 message_bytes);
    const std::span<std::byte> all = made.memory.span();
    made.extent = all.first(extent_bytes);
    made.gradients = all.subspan(extent_bytes, gradient_bytes);
    made.piece = {reinterpret_cast<float*>(all.data() + extent_bytes + gradient_bytes),
                  fpga::kPieceElems};
    made.message = all.last(message_bytes);
    made.parameters = all.last(message_bytes + parameter_bytes).first(parameter_bytes);
    made.payloads.resize(static_cast<std::size_t>(settings_.sources));
}

void EmulatedDevice::release_slot(int slot) { slots_.at(static_cast<std::size_t>(slot)) = Slot(); }

Ticket EmulatedDevice::read(int slot, std::size_t subgroup, std::int64_t generation) {
    Slot& s = allocated(slot);
    const auto extent = s.extent.first(layout_.extent_bytes(subgroup));
    s.reading = volume_.read(extent, layout_.extent_offset(subgroup, generation));
    if (is_on_host()) {
        s.reading.add(volume_.read(s.gradients.first(layout_.gradient_bytes(subgroup)),
                                   layout_.gradient_offset(subgroup)));
    }
    return read_lane_.submit([this, &s, extent, subgroup, generation] {
        s.reading.wait();
        verify(extent, subgroup, generation);
        traffic_->add(is_on_host() ? Counter::host_state_read : Counter::internal_read,
                      layout_.payload_bytes(subgroup));
        if (is_on_host()) {
            traffic_->add(Counter::host_gradients_read, layout_.gradient_bytes(subgroup));
        }
    });
}

// Where the gradient lies as the engine reads it, the tile is one run. Where it has to be decoded,
// each piece is decoded and updated while it is in the first cache.
void EmulatedDevice::update_tile(Slot& slot, std::size_t subgroup, std::size_t tile,
                                 const UpdateScalars& scalars, UpdateRun run) {
    const std::size_t local = layout_.first_tile(subgroup) + tile;
    run.gradient_dtype = Dtype::fp32;
    run.count = shard::kTileElems;
    if (is_on_host()) {
        run.gradient = slot.gradients.data() + tile * kTileBytes;
        return engine_->update(scalars, run);
    }
    if (payloads_->is_single(Dtype::bf16)) {
        // The engine widens as it goes, which spares a pass over the tile.
        run.gradient = payloads_->of(local, 0).data();
        run.gradient_dtype = Dtype::bf16;
        return engine_->update(scalars, run);
    }
    run.gradient = slot.piece.data();
    run.count = slot.piece.size();
    const StatePointers state = run.state;
    auto* parameters = static_cast<std::byte*>(run.parameters);
    for (std::size_t first = 0; first < shard::kTileElems; first += run.count) {
        payloads_->sum(local, first, slot.payloads, slot.piece);
        run.state = state_from(settings_.state, state, first);
        run.parameters = parameters + first * size_bytes(settings_.parameter_dtype);
        run.first = static_cast<std::uint32_t>(first);
        engine_->update(scalars, run);
    }
}

void EmulatedDevice::update(int slot, std::size_t subgroup, const UpdateScalars& scalars) {
    Slot& s = allocated(slot);
    const std::size_t tiles = layout_.tiles_in(subgroup);
    std::optional<codec::DeltaWriter> writer;
    if (has_deltas()) {
        writer.emplace(s.message, settings_.subgroups[subgroup].tiles);
    }
    const auto begin = std::chrono::steady_clock::now();
    UpdateRun run;
    run.format = settings_.state;
    run.parameter_dtype = settings_.parameter_dtype;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        run.state = state_of_tile(settings_.state, payload_of(s.extent, subgroup), tiles, tile);
        run.key =
            fpga::tile_key(scalars.random_key, settings_.subgroups[subgroup].tiles.begin + tile);
        if (!writer) {
            run.parameters = s.parameters.data() + tile * tile_parameter_bytes();
            update_tile(s, subgroup, tile, scalars, run);
            continue;
        }
        // Old parameters come from old masters, as they did when they were new; a tile's stay in
        // the cache.
        auto* old = reinterpret_cast<std::uint16_t*>(s.parameters.data());
        run.parameters = old;
        run.count = shard::kTileElems;
        engine_->round(run);
        run.parameters = old + shard::kTileElems;
        update_tile(s, subgroup, tile, scalars, run);
        writer->add(old, old + shard::kTileElems);
    }
    s.message_bytes = writer ? writer->finish() : 0;
    if (settings_.updates_per_s > 0) {
        const double seconds =
            static_cast<double>(tiles * shard::kTileElems) / settings_.updates_per_s;
        std::this_thread::sleep_until(begin + std::chrono::ceil<std::chrono::nanoseconds>(
                                                  std::chrono::duration<double>(seconds)));
    }
}

void EmulatedDevice::deliver(int slot, std::size_t subgroup, std::span<std::byte> landing) {
    if (has_deltas()) {
        const Slot& s = allocated(slot);
        const auto place = landing.subspan(subgroup * message_room_bytes(), s.message_bytes);
        std::ranges::copy(s.message.first(s.message_bytes), place.begin());
        cross_host_link(s.message_bytes);
        return;
    }
    const std::size_t begin = settings_.subgroups[subgroup].tiles.begin * tile_parameter_bytes();
    const std::size_t bytes = layout_.tiles_in(subgroup) * tile_parameter_bytes();
    expects(begin + bytes <= landing.size(), "the parameter vector has room for the subgroup");
    std::ranges::copy(allocated(slot).parameters.first(bytes), landing.subspan(begin).begin());
    if (!is_on_host()) {
        cross_host_link(bytes);
    }
}

// New parameters: counted, and held to the link's rate.
void EmulatedDevice::cross_host_link(std::size_t bytes) {
    traffic_->add(Counter::host_parameters, bytes);
    if (settings_.links != nullptr) {
        const link::Clock& clock = settings_.links->clock();
        link::cross(settings_.links->to_host(), clock.now(), bytes, clock);
    }
}

// Sealing has a lane of its own, so that one extent is sealed while another is written.
Ticket EmulatedDevice::write(int slot, std::size_t subgroup, std::int64_t generation) {
    Slot& s = allocated(slot);
    s.sealing = seal_lane_.submit([this, &s, subgroup, generation] {
        const auto extent = s.extent.first(layout_.extent_bytes(subgroup));
        store::seal(header_of(subgroup, generation), extent, settings_.digest);
        s.writing = volume_.write(extent, layout_.extent_offset(subgroup, generation));
    });
    return write_lane_.submit([this, &s, subgroup] {
        s.sealing.wait();
        s.writing.wait();
        traffic_->add(is_on_host() ? Counter::host_state_write : Counter::internal_write,
                      layout_.payload_bytes(subgroup));
    });
}

store::SubgroupHeader EmulatedDevice::header_of(std::size_t subgroup,
                                                std::int64_t generation) const {
    return {.layout = layout_digest_, .subgroup = subgroup, .generation = generation};
}

void EmulatedDevice::verify(std::span<const std::byte> extent, std::size_t subgroup,
                            std::int64_t generation) const {
    const auto fault = store::find_fault(header_of(subgroup, generation), extent, settings_.digest);
    if (fault) {
        throw IoError(text("The state of subgroup ", subgroup, " of device \"", settings_.name,
                           "\" at ",
                           volume_.describe_place(layout_.extent_offset(subgroup, generation)),
                           " cannot be used: ", *fault,
                           ". Start again with --resume; if it happens again, replace the drive."));
    }
}

void EmulatedDevice::read_state(std::size_t subgroup, std::int64_t generation,
                                const StateArrays& state) {
    const auto extent = transit_.span().first(layout_.extent_bytes(subgroup));
    volume_.read(extent, layout_.extent_offset(subgroup, generation), store::Speed::full).wait();
    verify(extent, subgroup, generation);
    widen(settings_.state, payload_of(extent, subgroup), state);
    traffic_->add(Counter::checkpoint, layout_.payload_bytes(subgroup));
}

void EmulatedDevice::write_state(std::size_t subgroup, std::int64_t generation,
                                 const StateArrays& state) {
    const auto extent = transit_.span().first(layout_.extent_bytes(subgroup));
    narrow(settings_.state, state, payload_of(extent, subgroup));
    if (settings_.state != StateFormat::fp32) {
        widen(settings_.state, payload_of(extent, subgroup), state);
    }
    store::seal(header_of(subgroup, generation), extent, settings_.digest);
    volume_.write(extent, layout_.extent_offset(subgroup, generation), store::Speed::full).wait();
    traffic_->add(Counter::checkpoint, layout_.payload_bytes(subgroup));
}

}  // namespace

std::size_t storage_bytes(const EmulatedDeviceSettings& settings) {
    return settings.files.size() *
           store::Volume::file_bytes(volume_of(settings, layout_of(settings)));
}

std::unique_ptr<Device> make_emulated_device(const EmulatedDeviceSettings& settings,
                                             trace::Traffic& traffic) {
    const bool is_on_host = settings.place == UpdatePlace::on_host;
    expects(settings.files.size() == 1 || (is_on_host && !settings.files.empty()),
            "a device near storage has one file, one on the host has one or more");
    expects(settings.slots >= 1, "a device has a slot");
    expects(is_on_host || (settings.codec != nullptr && settings.sources >= 1),
            "a device near storage has a codec and a source of gradients");
    expects(settings.delivery == Delivery::parameters ||
                (!is_on_host && size_bytes(settings.parameter_dtype) == sizeof(std::uint16_t)),
            "deltas leave devices near storage and are of 16-bit parameters");
    const std::size_t bytes_of_each = storage_bytes(settings) / settings.files.size();
    std::vector<store::PlannedFile> planned;
    for (const std::string& file : settings.files) {
        planned.push_back({file, bytes_of_each});
    }
    store::check_folders(planned);
    return std::make_unique<EmulatedDevice>(settings, traffic);
}

}  // namespace nearstep::csd
