// The stored state of one device: where each subgroup lies, and checks of its owner and integrity.
#pragma once

#include "csd/device.hpp"
#include "csd/gradient_log.hpp"
#include "csd/master_digests.hpp"
#include "csd/state_layout.hpp"
#include "csd/state_places.hpp"
#include "csd/update_engine.hpp"
#include "memory/buffer.hpp"
#include "store/storage_folder.hpp"
#include "store/subgroup_header.hpp"
#include "store/volume.hpp"
#include "trace/traffic.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <vector>

namespace nearstep::csd {

struct StateVolumeSettings {
    std::string name;  // of the device
    std::vector<shard::Subgroup> subgroups;
    StateFormat state = StateFormat::fp32;
    bool has_gradients = false;  // a region for fp32 gradients
    std::size_t spare = 0;       // see StateLayout; without has_gradients
    // Logs of updates, with spare places. The update to generation g is in the log of number g
    // modulo their number. With one log each update stores all state. With several, those that have
    // the same log store the same part of it.
    std::vector<std::string> logs = {};
    std::size_t log_bytes = 0;  // for the payloads of each; 0: none is written
    store::PayloadDigest digest = store::PayloadDigest::present;
    bool checks_masters = false;   // keeps digests for read_masters(), unless state is in memory
    store::VolumeSettings volume;  // without `bytes`, which the constructor fills in
};

// Every kind of device has the same files (docs/formats/state-file.md). Any thread may call.
class StateVolume {
public:
    // Opens and locks the files that are there; throws as store::Volume. `traffic` outlives this.
    StateVolume(const StateVolumeSettings& settings, trace::Traffic& traffic);

    // The files, and the bytes that reserve() takes for each.
    static std::vector<store::PlannedFile> planned_files(const StateVolumeSettings& settings);

    const StateLayout& layout() const { return layout_; }
    const std::string& name() const { return settings_.name; }
    const std::vector<shard::Subgroup>& subgroups() const { return settings_.subgroups; }
    store::Volume& volume() { return volume_; }
    const store::Volume& volume() const { return volume_; }

    // Position of a tile of the parameter vector among the tiles of the device.
    std::size_t local_tile(std::size_t tile) const;

    // The payload of an extent, after its header.
    std::span<std::byte> payload_of(std::span<std::byte> extent, std::size_t subgroup) const {
        return extent.subspan(store::kHeaderBytes, layout_.payload_bytes(subgroup));
    }
    // The state that the files belong to, by store::number_of_state(). Set before they are read or
    // written; 0 at first.
    void belong_to(std::uint64_t state) { state_ = state; }
    store::SubgroupHeader header_of(std::size_t subgroup, std::int64_t generation) const {
        return {.layout = layout_digest_,
                .subgroup = subgroup,
                .generation = generation,
                .state = state_};
    }
    // Where a version lies, and where it is written next. new_place_of() waits for a spare place,
    // and rethrows an error of fail(). place_of() throws DamageError if no place has the version,
    // and ConfigError if the state is another one.
    std::int64_t place_of(std::size_t subgroup, std::int64_t generation);
    std::int64_t new_place_of(std::size_t subgroup, std::int64_t generation);
    // A version is stored in its new place, or could not be.
    void finish(std::size_t subgroup, std::int64_t generation);
    void fail(const std::exception_ptr& error);
    // See Device::accept().
    void accept(std::int64_t generation);
    // The subgroups of which load() has repeated updates to this generation, and which are to be
    // stored with store_repeated(). Each is taken once. Frees the places of all older versions that
    // are not needed for that.
    std::vector<std::size_t> take_repeated(std::int64_t generation);
    void store_repeated(std::size_t subgroup, std::int64_t generation);
    // The log of an update to this generation. Requires logs.
    GradientLog& log_of(std::int64_t generation) {
        return logs_.at(static_cast<std::size_t>(generation) % logs_.size());
    }
    bool has_turns() const { return logs_.size() > 1; }
    // Whether the update to this generation stores the subgroup.
    bool is_in_turn(std::size_t subgroup, std::int64_t generation) const {
        return logs_.empty() ||
               subgroup % logs_.size() == static_cast<std::size_t>(generation) % logs_.size();
    }
    // Stores an update to this generation in its log.
    void keep_update(std::int64_t generation, const PayloadMemory& payloads,
                     const StepScalars& scalars, const GroupMap& groups);

    void claim();
    void withdraw();
    void reserve();

    // Header and payload within the mapped file. Requires volume().is_mapped().
    std::span<std::byte> map(std::size_t subgroup, std::int64_t offset) {
        return volume_.map(offset, layout_.extent_bytes(subgroup));
    }
    void seal(std::span<std::byte> extent, std::size_t subgroup, std::int64_t generation);
    // Writes the header alone, before seal(). Of mapped state with spare places: what a process has
    // stored in memory stays when it is killed, so that a restart takes it without a digest.
    void mark(std::span<std::byte> extent, std::size_t subgroup, std::int64_t generation);
    // Throws DamageError if an extent that was read is damaged or not the expected one.
    void verify(std::span<const std::byte> extent, std::size_t subgroup,
                std::int64_t generation) const;
    // Throws DamageError for an extent. `fault` is a phrase as from store::find_fault.
    [[noreturn]] void refuse(const std::string& fault, std::size_t subgroup,
                             std::int64_t generation) const;

    // Reads header and payload of a version. Repeats updates from logs, if no place holds that
    // generation whole. Throws DamageError, and ConfigError if the state is another one.
    void load(std::size_t subgroup, std::int64_t generation, std::span<std::byte> extent);

    // The most updates of a subgroup that load() and read_state() have repeated.
    std::int64_t most_repeated() const { return most_repeated_; }

    // These do what csd::Device says of them; read_masters() needs `checks_masters`. Up to
    // kMostCalls run at once and others wait. Each running call keeps the memory of one extent.
    void read_state(std::size_t subgroup, std::int64_t generation, const StateArrays& state);
    void write_state(std::size_t subgroup, std::int64_t generation, const StateArrays& state);
    // Does that with the caller's memory for header and payload, which keeps them.
    void write_state(std::size_t subgroup, std::int64_t generation, const StateArrays& state,
                     std::span<std::byte> extent);
    // Any number of calls run at once. read_stored() returns the payload of a version, verified and
    // as it is stored, in the storage or in `memory`, which grows to hold the extent.
    // write_extent() seals and stores one.
    std::span<std::byte> read_stored(std::size_t subgroup, std::int64_t generation,
                                     memory::Buffer& memory);
    std::span<std::byte> room_for(std::size_t subgroup, std::int64_t generation,
                                  memory::Buffer& memory);
    void write_stored(std::size_t subgroup, std::int64_t generation, memory::Buffer& memory);
    void write_extent(std::size_t subgroup, std::int64_t generation, std::span<std::byte> extent);
    Ticket read_masters(std::size_t subgroup, std::int64_t generation, std::size_t first,
                        std::span<std::byte> to);

private:
    class Transit;

    // While one call waits for the drive, others check and convert what they have.
    static constexpr std::ptrdiff_t kMostCalls = 3;

    // Throws ConfigError.
    void refuse_other_state(std::span<const std::byte> extent, std::size_t subgroup,
                            std::int64_t generation, std::int64_t offset) const;
    std::optional<std::string> find_fault(std::span<const std::byte> extent, std::size_t subgroup,
                                          std::int64_t generation) const;
    [[noreturn]] void refuse_at(std::int64_t offset, const std::string& fault,
                                std::size_t subgroup) const;
    store::SubgroupHeader header_of_log(std::int64_t generation) const;
    shard::ElementRange range() const;
    void look_for_places();
    std::optional<std::int64_t> find_place(std::size_t subgroup, std::int64_t generation);
    std::vector<std::int64_t> versions(std::size_t subgroup, std::int64_t until);
    std::shared_ptr<const LoggedUpdate> update_to(std::int64_t generation);
    std::optional<std::string> read_extent(std::size_t subgroup, std::int64_t generation,
                                           std::span<std::byte> extent);
    std::optional<std::string> repeat(std::size_t subgroup, std::int64_t from, std::int64_t to,
                                      std::span<std::byte> extent);
    void store_extent(std::size_t subgroup, std::int64_t generation, std::span<std::byte> extent);
    std::int64_t place_to_store(std::size_t subgroup, std::int64_t generation);
    std::span<std::byte> extent_to_store(std::size_t subgroup, std::int64_t generation,
                                         memory::Buffer& memory);
    std::span<std::byte> extent_in(memory::Buffer& memory, std::size_t subgroup) const;
    std::span<std::byte> extent_in_place(std::size_t subgroup, std::int64_t generation);
    // Whether what is stored is written to its place in memory.
    bool stores_in_place() const { return volume_.is_mapped() && !has_turns(); }
    void move_back();
    void make_missing_logs();

    StateVolumeSettings settings_;
    trace::Traffic* traffic_;
    StateLayout layout_;
    std::uint64_t layout_digest_;
    std::uint64_t state_ = 0;
    std::optional<MasterDigests> masters_;
    store::Volume volume_;
    // With spare places.
    std::optional<StatePlaces> places_;
    std::deque<GradientLog> logs_;
    std::mutex looking_;       // guards what follows, to repeated_
    bool has_looked_ = false;  // for what the places hold
    // The updates that the logs were found to have, by generation.
    std::map<std::int64_t, std::shared_ptr<const LoggedUpdate>> updates_;
    std::atomic<std::int64_t> most_repeated_ = 0;
    // From which generation load() has repeated updates, by subgroup.
    std::map<std::size_t, std::int64_t> repeated_;
    std::counting_semaphore<> calls_{kMostCalls};
    std::mutex lock_;
    std::vector<memory::Buffer>
        transit_;  // extents for read_state() and write_state(), while unused
};

}  // namespace nearstep::csd
