// Seals, verifies, reads and writes a device's state. Used by devices and restarts.
#include "csd/state_volume.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "csd/state_format.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::csd {

namespace {

StateLayout layout_of(const StateVolumeSettings& settings) {
    return {settings.subgroups, settings.state, settings.has_gradients, settings.spare};
}

store::VolumeSettings volume_of(const StateVolumeSettings& settings, const StateLayout& layout) {
    store::VolumeSettings volume = settings.volume;
    volume.bytes = layout.total_bytes();
    volume.more_bytes = layout.addressed_bytes() - layout.total_bytes();
    return volume;
}

// The only log lies beside the state.
Term key_of_logs(const StateVolumeSettings& settings) {
    return settings.logs.size() > 1 ? Term::log : Term::path;
}

}  // namespace

StateVolume::StateVolume(const StateVolumeSettings& settings, trace::Traffic& traffic)
    : settings_(settings),
      traffic_(&traffic),
      layout_(layout_of(settings)),
      layout_digest_(StateLayout::digest(settings.name, settings.subgroups, settings.state)),
      volume_(volume_of(settings, layout_)) {
    if (settings.checks_masters && !volume_.is_mapped() && !has_turns()) {
        masters_.emplace(layout_);
    }
    if (layout_.has_spare()) {
        places_.emplace(layout_.subgroups(), layout_.places_with_lent(), layout_.places(),
                        settings.logs.size() > 1 ? StatePlaces::Frees::when_accepted
                                                 : StatePlaces::Frees::when_stored);
    }
    expects(
        settings.logs.size() < 2 || layout_.spare() * settings.logs.size() >= layout_.subgroups(),
        "there is a spare place for each subgroup that an update stores");
    for (const std::string& log : settings.logs) {
        logs_.emplace_back(log, settings.volume.storage, key_of_logs(settings));
    }
}

void StateVolume::claim() {
    volume_.claim();
    for (GradientLog& log : logs_) {
        if (settings_.log_bytes > 0) {
            log.claim();
        }
    }
}

void StateVolume::withdraw() {
    volume_.withdraw();
    std::ranges::for_each(logs_, &GradientLog::withdraw);
}

void StateVolume::reserve() {
    volume_.reserve();
    if (places_) {
        places_->clear();
        has_looked_ = true;
        updates_.clear();
    }
    for (GradientLog& log : logs_) {
        if (settings_.log_bytes > 0) {
            log.reserve(settings_.log_bytes);
        } else {
            log.remove();
        }
    }
}

std::vector<store::PlannedFile> StateVolume::planned_files(const StateVolumeSettings& settings) {
    const StateLayout layout = layout_of(settings);
    const store::VolumeSettings volume = volume_of(settings, layout);
    const LoggedState logged = logged_state(layout, settings.log_bytes, settings.logs.size());
    const std::size_t places = layout.has_spare() ? layout.places() : layout.places_with_lent();
    std::vector<store::PlannedFile> planned;
    for (const std::string& file : volume.files) {
        const std::size_t bytes = store::Volume::file_bytes(volume);
        planned.push_back({file, bytes,
                           settings.logs.size() > 1
                               ? logged.state_bytes_of_step()
                               : bytes * layout.subgroups() / std::max<std::size_t>(places, 1)});
    }
    for (const std::string& log : settings.logs) {
        if (settings.log_bytes > 0) {
            planned.push_back({log, logged.log_bytes, logged.log_bytes / settings.logs.size(),
                               key_of_logs(settings)});
        }
    }
    return planned;
}

std::size_t StateVolume::local_tile(std::size_t tile) const {
    return layout_.local_tile(settings_.subgroups, tile);
}

void StateVolume::seal(std::span<std::byte> extent, std::size_t subgroup, std::int64_t generation) {
    if (masters_) {
        masters_->note(subgroup, generation, payload_of(extent, subgroup));
    }
    store::seal(header_of(subgroup, generation), extent, settings_.digest);
}

void StateVolume::mark(std::span<std::byte> extent, std::size_t subgroup, std::int64_t generation) {
    store::seal(header_of(subgroup, generation), extent, store::PayloadDigest::absent);
}

void StateVolume::verify(std::span<const std::byte> extent, std::size_t subgroup,
                         std::int64_t generation) const {
    if (const auto fault = find_fault(extent, subgroup, generation)) {
        refuse(*fault, subgroup, generation);
    }
}

std::optional<std::string> StateVolume::find_fault(std::span<const std::byte> extent,
                                                   std::size_t subgroup,
                                                   std::int64_t generation) const {
    const bool was_cut_off = places_ && !store::has_digest(extent);
    return store::find_fault(header_of(subgroup, generation), extent,
                             was_cut_off ? store::PayloadDigest::absent : settings_.digest);
}

void StateVolume::refuse(const std::string& fault, std::size_t subgroup,
                         std::int64_t generation) const {
    const auto place = places_ ? places_->find(subgroup, generation) : std::nullopt;
    refuse_at(!places_ ? layout_.extent_offset(subgroup, generation)
              : place  ? layout_.place_offset(*place)
                       : 0,
              fault, subgroup);
}

void StateVolume::refuse_at(std::int64_t offset, const std::string& fault,
                            std::size_t subgroup) const {
    throw DamageError(text("The state of subgroup ", subgroup, " of device \"", settings_.name,
                           "\" at ", volume_.describe_place(offset), " cannot be used: ", fault,
                           ". Start again with ", Term::resume,
                           "; if it happens again, replace the drive."));
}

// Throws ConfigError if the extent is of another state, over which the replacement of a damaged one
// would be written.
void StateVolume::refuse_other_state(std::span<const std::byte> extent, std::size_t subgroup,
                                     std::int64_t generation, std::int64_t offset) const {
    if (store::is_of_other_state(header_of(subgroup, generation), extent)) {
        throw ConfigError(text(
            "The state of subgroup ", subgroup, " of device \"", settings_.name, "\" at ",
            volume_.describe_place(offset),
            " belongs to another run, or to an earlier start of this one: put this run's own file "
            "back and use ",
            Term::resume, " again; to give that up, go on from a checkpoint with ", Term::from,
            ", or start anew with ", Term::fresh, ", which replace the file."));
    }
}

// Reserves memory for the extent of one call.
class StateVolume::Transit {
public:
    explicit Transit(StateVolume& volume) : volume_(volume) {
        volume_.calls_.acquire();
        const std::lock_guard lock(volume_.lock_);
        if (!volume_.transit_.empty()) {
            memory_ = std::move(volume_.transit_.back());
            volume_.transit_.pop_back();
        }
    }
    Transit(const Transit&) = delete;
    Transit& operator=(const Transit&) = delete;
    ~Transit() {
        {
            const std::lock_guard lock(volume_.lock_);
            volume_.transit_.push_back(std::move(memory_));
        }
        volume_.calls_.release();
    }

    std::span<std::byte> extent(std::size_t subgroup) {
        if (memory_.size() == 0) {
            memory_ = memory::Buffer(volume_.layout_.most_extent_bytes());
        }
        return memory_.span().first(volume_.layout_.extent_bytes(subgroup));
    }

private:
    StateVolume& volume_;
    memory::Buffer memory_;
};

// The newest version that lies whole in its place is brought forward. An older one is left while
// the next one is stored.
void StateVolume::load(std::size_t subgroup, std::int64_t generation, std::span<std::byte> extent) {
    std::string fault = text("no place holds its generation ", generation);
    for (const std::int64_t version : versions(subgroup, generation)) {
        auto why = read_extent(subgroup, version, extent);
        if (!why) {
            why = repeat(subgroup, version, generation, extent);
        }
        if (!why) {
            return;
        }
        fault = *why;
    }
    refuse(fault, subgroup, generation);
}

// Says what is wrong with the version; nullopt if it is there, whole.
std::optional<std::string> StateVolume::read_extent(std::size_t subgroup, std::int64_t generation,
                                                    std::span<std::byte> extent) {
    const auto offset = find_place(subgroup, generation);
    if (!offset) {
        return text("no place holds its generation ", generation);
    }
    volume_.read(extent, *offset, store::Speed::full).wait();
    refuse_other_state(extent, subgroup, generation, *offset);
    return find_fault(extent, subgroup, generation);
}

void StateVolume::read_state(std::size_t subgroup, std::int64_t generation,
                             const StateArrays& state) {
    Transit transit(*this);
    const std::span<std::byte> extent = transit.extent(subgroup);
    load(subgroup, generation, extent);
    if (masters_ && !masters_->know(subgroup, generation)) {
        masters_->note(subgroup, generation, payload_of(extent, subgroup));
    }
    widen(settings_.state, payload_of(extent, subgroup), state);
    traffic_->add(trace::Counter::checkpoint, layout_.payload_bytes(subgroup));
}

void StateVolume::write_state(std::size_t subgroup, std::int64_t generation,
                              const StateArrays& state) {
    Transit transit(*this);
    write_state(subgroup, generation, state, transit.extent(subgroup));
}

void StateVolume::write_state(std::size_t subgroup, std::int64_t generation,
                              const StateArrays& state, std::span<std::byte> extent) {
    narrow(settings_.state, state, payload_of(extent, subgroup));
    if (settings_.state != StateFormat::fp32) {
        widen(settings_.state, payload_of(extent, subgroup), state);
    }
    write_extent(subgroup, generation, extent);
}

void StateVolume::write_extent(std::size_t subgroup, std::int64_t generation,
                               std::span<std::byte> extent) {
    store_extent(subgroup, generation, extent);
    traffic_->add(trace::Counter::checkpoint, layout_.payload_bytes(subgroup));
}

std::span<std::byte> StateVolume::extent_in(memory::Buffer& memory, std::size_t subgroup) const {
    if (memory.size() < layout_.extent_bytes(subgroup)) {
        memory = memory::Buffer(layout_.most_extent_bytes());
    }
    return memory.span().first(layout_.extent_bytes(subgroup));
}

std::span<std::byte> StateVolume::read_stored(std::size_t subgroup, std::int64_t generation,
                                              memory::Buffer& memory) {
    std::span<std::byte> extent = extent_in_place(subgroup, generation);
    if (extent.empty()) {
        extent = extent_in(memory, subgroup);
        load(subgroup, generation, extent);
    }
    traffic_->add(trace::Counter::checkpoint, layout_.payload_bytes(subgroup));
    return payload_of(extent, subgroup);
}

// Returns a version that lies whole in memory, where all threads can read it at once; else nothing.
// A shorter file would grow if it was mapped.
std::span<std::byte> StateVolume::extent_in_place(std::size_t subgroup, std::int64_t generation) {
    if (!stores_in_place() || volume_.held_bytes() < layout_.addressed_bytes()) {
        return {};
    }
    const auto offset = find_place(subgroup, generation);
    if (!offset) {
        return {};
    }
    const std::span<std::byte> extent = map(subgroup, *offset);
    refuse_other_state(extent, subgroup, generation, *offset);
    return find_fault(extent, subgroup, generation) ? std::span<std::byte>() : extent;
}

std::span<std::byte> StateVolume::extent_to_store(std::size_t subgroup, std::int64_t generation,
                                                  memory::Buffer& memory) {
    return stores_in_place() ? map(subgroup, place_to_store(subgroup, generation))
                             : extent_in(memory, subgroup);
}

std::span<std::byte> StateVolume::room_for(std::size_t subgroup, std::int64_t generation,
                                           memory::Buffer& memory) {
    const auto payload = payload_of(extent_to_store(subgroup, generation, memory), subgroup);
    clear_after_arrays(settings_.state, payload, layout_.tiles_in(subgroup));
    return payload;
}

void StateVolume::write_stored(std::size_t subgroup, std::int64_t generation,
                               memory::Buffer& memory) {
    const auto extent = extent_to_store(subgroup, generation, memory);
    if (!stores_in_place()) {
        write_extent(subgroup, generation, extent);
        return;
    }
    seal(extent, subgroup, generation);
    volume_.note_written(extent.size());
    finish(subgroup, generation);
    traffic_->add(trace::Counter::checkpoint, layout_.payload_bytes(subgroup));
}

// Masters are the first array of a payload.
Ticket StateVolume::read_masters(std::size_t subgroup, std::int64_t generation, std::size_t first,
                                 std::span<std::byte> to) {
    const std::size_t begin = first * size_bytes(master_dtype(settings_.state));
    expects(begin + to.size() <= layout_.payload_bytes(subgroup), "the subgroup has these masters");
    const std::int64_t offset =
        place_of(subgroup, generation) + static_cast<std::int64_t>(store::kHeaderBytes + begin);
    return volume_.read(to, offset).then([this, subgroup, generation, begin, to] {
        traffic_->add(trace::Counter::host_masters_read, to.size());
        if (masters_ && !masters_->match(subgroup, generation, begin, to)) {
            refuse("masters that were read are not those that were written", subgroup, generation);
        }
    });
}

}  // namespace nearstep::csd
