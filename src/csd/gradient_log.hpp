// A log of a device: what one of its updates needs, stored before old state gives up its place. A
// restart repeats the update where its state is missing. See docs/formats/gradient-log.md.
#pragma once

#include "base/wording.hpp"
#include "codec/codec.hpp"
#include "csd/group_map.hpp"
#include "csd/keeping.hpp"
#include "csd/payload_memory.hpp"
#include "csd/state_layout.hpp"
#include "csd/step_scalars.hpp"
#include "store/file.hpp"
#include "store/subgroup_header.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::csd {

class GradientLog;

// An update in a log, which outlives it. It makes the state of one generation from the one before.
// Any thread may call. Throws DamageError if gradients are damaged.
class LoggedUpdate {
public:
    // How payloads lie in the log.
    struct Payloads {
        std::size_t stride = 0;
        std::size_t sources = 0;
        std::vector<std::uint64_t> digests;  // of each tile
    };

    LoggedUpdate(const GradientLog& log, const StepScalars& scalars, GroupMap groups,
                 std::unique_ptr<codec::Codec> codec, Payloads payloads);

    // Updates the state of a subgroup in place, with its gradients from the log.
    void apply(const StateLayout& layout, const std::vector<shard::Subgroup>& subgroups,
               std::size_t subgroup, std::span<std::byte> payload) const;

private:
    PayloadMemory read(std::size_t first_tile, std::size_t tiles) const;

    const GradientLog* log_;
    StepScalars scalars_;
    GroupMap groups_;
    std::unique_ptr<codec::Codec> codec_;
    Payloads payloads_;
};

class GradientLog {
public:
    // Opens and locks the file if it is there; throws as store::File. Not moved after that.
    // `key`: what names its folder, for messages.
    explicit GradientLog(std::string path, store::Storage* storage = nullptr,
                         Term key = Term::path);

    // Bytes of the file for payloads of so many bytes, with room for the groups' and tiles' facts.
    static std::size_t file_bytes(std::size_t payload_bytes);

    const std::string& path() const { return file_.path(); }
    bool is_there() const { return file_.held_bytes() > 0; }
    void claim() { file_.claim(); }
    void withdraw() { file_.withdraw(); }
    // Empties the log and reserves space for payloads. Throws as store::File.
    void reserve(std::size_t payload_bytes);
    // Removes the file's name.
    void remove();

    // Memory for the payloads: of the file, if it lies in memory and the system moves its data.
    // Keeps what the file holds until put() replaces it.
    void hold(PayloadMemory& payloads);

    // Stores the update to header.generation. On return it outlives this process and, after
    // flush(), a power cut. `range`: the elements of the device. Returns the bytes written.
    std::size_t put(const store::SubgroupHeader& header, const PayloadMemory& payloads,
                    const StepScalars& scalars, const GroupMap& groups, shard::ElementRange range);
    void flush() { file_.sync(); }

    // The update to header.generation, of a device with so many tiles; nullopt if the log has
    // another. Throws DamageError if it is damaged or cannot be one.
    std::optional<LoggedUpdate> read(const store::SubgroupHeader& header, std::size_t tiles,
                                     shard::ElementRange range);

private:
    bool is_mapped() const;
    struct Directory;
    struct Facts;
    friend class LoggedUpdate;
    void read_into(std::span<std::byte> pages, std::size_t offset) const;
    void write(std::span<const std::byte> pages, std::size_t offset);
    Facts read_facts(const Directory& directory) const;
    [[noreturn]] void refuse(const std::string& fault) const;

    mutable store::File file_;  // transfers do not change what this is
    bool has_storage_;          // of a caller
    bool holds_payloads_ = false;
};

// A device of the layout keeps this, with so many logs of payloads of so many bytes.
LoggedState logged_state(const StateLayout& layout, std::size_t payload_bytes, std::size_t logs);

}  // namespace nearstep::csd
