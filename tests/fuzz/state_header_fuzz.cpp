// A subgroup's state and its header, whose checksum is unchanged or corrected.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "csd/state_format.hpp"
#include "fuzz.hpp"
#include "store/subgroup_header.hpp"

#include <array>

namespace nearstep::fuzz {

namespace {

using store::kHeaderBytes;

constexpr store::SubgroupHeader kHeader = {.layout = 77, .subgroup = 3, .generation = 12};
constexpr std::size_t kDigestAt = kHeaderBytes - 8;
constexpr std::array kFormats = {csd::StateFormat::fp32, csd::StateFormat::bf16,
                                 csd::StateFormat::q8, csd::StateFormat::compact};

// Any payload with a valid checksum can be widened.
void widen(csd::StateFormat format, std::span<std::byte> payload) {
    std::vector<float> state(3 * shard::kTileElems);
    const std::span<float> all(state);
    csd::widen(format, payload,
               {.master = all.first(shard::kTileElems),
                .moment1 = all.subspan(shard::kTileElems, shard::kTileElems),
                .moment2 = all.last(shard::kTileElems)});
}

}  // namespace

std::vector<std::string> seeds() {
    std::vector<std::string> all;
    for (std::uint8_t format = 0; format < kFormats.size(); ++format) {
        all.push_back(Output().number(std::uint8_t{1}).number(format).number(std::uint32_t{16}));
        all.push_back(Output().number(std::uint8_t{0}).number(format));
    }
    return all;
}

void read(Bytes bytes) {
    Input input(bytes);
    const bool is_mended = input.flag();
    const csd::StateFormat format = kFormats.at(input.choice(kFormats.size()));
    const std::size_t payload_bytes = csd::state_bytes(format, 1);
    std::vector<std::byte> extent(kHeaderBytes + payload_bytes);
    store::seal(kHeader, extent);
    const std::vector<std::byte> sealed = extent;
    edit(input, extent);
    if (is_mended) {
        const std::uint64_t digest = xxh3(std::span(extent).first(kDigestAt));
        std::memcpy(extent.data() + kDigestAt, &digest, sizeof digest);
    }
    const std::optional<std::string> fault = store::find_fault(kHeader, extent);
    require(!fault || !fault->empty(), "a fault is said");
    require(fault || is_mended || extent == sealed, "a change is found");
    widen(format, std::span(extent).subspan(kHeaderBytes));
}

}  // namespace nearstep::fuzz
