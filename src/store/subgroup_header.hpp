// The page in front of a subgroup's state in storage, which tells whose and which state it is.
// The format is described in docs/state-file.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nearstep::store {

// Bytes of the header: one page, so that the state behind it is aligned for direct I/O.
constexpr std::size_t kHeaderBytes = 4096;

// A header starts with it.
constexpr std::string_view kHeaderMagic = "NEARSTEP";

struct SubgroupHeader {
    std::uint64_t layout = 0;    // digest of the device's name and partition
    std::uint64_t subgroup = 0;  // among those of the device
    std::int64_t generation = 0;
};

// absent: the payload is neither digested nor checked, for measurements of what that costs. A
// reader that checks refuses what was sealed so.
enum class PayloadDigest { present, absent };

// Fills the first kHeaderBytes of `extent` with a header for the payload behind them, which it
// digests.
void seal(const SubgroupHeader& header, std::span<std::byte> extent,
          PayloadDigest digest = PayloadDigest::present);

// The same for a payload that lies elsewhere: `page` has kHeaderBytes, `digest` is the payload's
// XXH3, 0 to leave it out.
void seal_page(const SubgroupHeader& header, std::span<std::byte> page, std::size_t payload_bytes,
               std::uint64_t digest);

// Whether the file begins as a state file of one device does, or with zeros as one that was never
// written to.
bool is_state_file(const std::string& path);

// The newest generation in the first subgroup of a state file, whatever its layout; 0 if that is
// whole and no more than start values, or if the file holds zeros; the largest number if it holds
// something else, as a stripe of state does.
std::int64_t newest_generation_in(const std::string& path);

// What is wrong with an extent that should hold `expected` and an undamaged payload, as a phrase
// ("it holds generation 6 instead of 7"); nullopt if nothing is.
std::optional<std::string> find_fault(const SubgroupHeader& expected,
                                      std::span<const std::byte> extent,
                                      PayloadDigest digest = PayloadDigest::present);

// The same for a payload that lies elsewhere. `digest`: its XXH3; without one it is not checked.
std::optional<std::string> find_page_fault(const SubgroupHeader& expected,
                                           std::span<const std::byte> page,
                                           std::size_t payload_bytes,
                                           std::optional<std::uint64_t> digest);

}  // namespace nearstep::store
