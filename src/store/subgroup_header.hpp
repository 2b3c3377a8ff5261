// The page before a subgroup's stored state. It identifies the state's owner and generation.
// docs/formats/state-file.md describes the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nearstep::store {

// Size of the header: one page, which keeps the state after it aligned for direct I/O.
constexpr std::size_t kHeaderBytes = 4096;

// The first bytes of a header.
constexpr std::string_view kHeaderMagic = "NEARSTEP";

struct SubgroupHeader {
    std::uint64_t layout = 0;    // digest of the device's name, tiles and state format
    std::uint64_t subgroup = 0;  // number within the device
    std::int64_t generation = 0;
    std::uint64_t state =
        0;  // number_of_state(); a stored 0 fits any, since version 0.2.0 wrote it
};

// The number by which headers name a state; `id` is Manifest::state. 0 for an empty id.
std::uint64_t number_of_state(std::string_view id);

// absent: the payload is neither digested nor checked, to measure that cost. A reader that checks
// refuses such a payload.
enum class PayloadDigest { present, absent };

// Writes a header into the first kHeaderBytes of `extent`. It covers the payload after them, which
// is digested.
void seal(const SubgroupHeader& header, std::span<std::byte> extent,
          PayloadDigest digest = PayloadDigest::present);

// Whether the header has a digest of its payload.
bool has_digest(std::span<const std::byte> page);

// Writes a header for a payload that is stored elsewhere. `page` has kHeaderBytes; `digest` is the
// payload's XXH3, or 0 to leave it out.
void seal_page(const SubgroupHeader& header, std::span<std::byte> page, std::size_t payload_bytes,
               std::uint64_t digest);

// The newest generation in the first subgroup of a state file of any layout. 0 if only start values
// were written, or the file holds zeros. The largest number if the file holds anything else, such
// as a stripe.
std::int64_t newest_generation_in(const std::string& path);

// Whether this is the whole header of an extent of another state, which a file holds that was moved
// or mounted here.
bool is_of_other_state(const SubgroupHeader& expected, std::span<const std::byte> page);

// The state that the first extent in a state file of any layout, or a log, belongs to. 0 if it
// names none, or there is no whole extent that this user may read.
std::uint64_t state_in(const std::string& path);

// The version that a page says that it is the header of, if it is a whole header of this layout.
// The state that it belongs to is not looked at.
struct StoredVersion {
    std::uint64_t subgroup = 0;
    std::int64_t generation = 0;
};
std::optional<StoredVersion> version_in(std::span<const std::byte> page, std::uint64_t layout);

// Says what is wrong with an extent that should match `expected`, as a phrase ("it holds generation
// 6 instead of 7"); nullopt if nothing is.
std::optional<std::string> find_fault(const SubgroupHeader& expected,
                                      std::span<const std::byte> extent,
                                      PayloadDigest digest = PayloadDigest::present);

// Does the same for a payload that is stored elsewhere than its page. `digest` is the payload's
// XXH3; nullopt: the payload is not checked.
std::optional<std::string> find_page_fault(const SubgroupHeader& expected,
                                           std::span<const std::byte> page,
                                           std::size_t payload_bytes,
                                           std::optional<std::uint64_t> digest);

}  // namespace nearstep::store
