#include "store/subgroup_header.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace nearstep::store {

namespace {

constexpr std::string_view kMagic = "NEARSTEP";
constexpr std::uint64_t kFormatVersion = 1;

// Byte offsets of the fields, each of 8 bytes.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kLayoutAt = 16;
constexpr std::size_t kSubgroupAt = 24;
constexpr std::size_t kGenerationAt = 32;
constexpr std::size_t kPayloadBytesAt = 40;
constexpr std::size_t kPayloadDigestAt = 48;
constexpr std::size_t kHeaderDigestAt = kHeaderBytes - 8;

void put(std::span<std::byte> extent, std::size_t at, std::uint64_t value) {
    std::memcpy(extent.data() + at, &value, sizeof value);
}

std::uint64_t get(std::span<const std::byte> extent, std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, extent.data() + at, sizeof value);
    return value;
}

}  // namespace

void seal(const SubgroupHeader& header, std::span<std::byte> extent, PayloadDigest digest) {
    expects(extent.size() >= kHeaderBytes, "an extent has room for its header");
    const auto payload = extent.subspan(kHeaderBytes);
    std::fill_n(extent.begin(), kHeaderBytes, std::byte{0});
    std::memcpy(extent.data(), kMagic.data(), kMagic.size());
    put(extent, kVersionAt, kFormatVersion);
    put(extent, kLayoutAt, header.layout);
    put(extent, kSubgroupAt, header.subgroup);
    put(extent, kGenerationAt, static_cast<std::uint64_t>(header.generation));
    put(extent, kPayloadBytesAt, payload.size());
    if (digest == PayloadDigest::present) {
        put(extent, kPayloadDigestAt, xxh3(payload));
    }
    put(extent, kHeaderDigestAt, xxh3(extent.first(kHeaderDigestAt)));
}

std::optional<std::string> find_fault(const SubgroupHeader& expected,
                                      std::span<const std::byte> extent, PayloadDigest digest) {
    expects(extent.size() >= kHeaderBytes, "an extent has room for its header");
    if (std::memcmp(extent.data(), kMagic.data(), kMagic.size()) != 0) {
        return "it has no header: it was never written, or was overwritten";
    }
    if (get(extent, kHeaderDigestAt) != xxh3(extent.first(kHeaderDigestAt))) {
        return "its header is damaged (checksum mismatch)";
    }
    if (get(extent, kVersionAt) != kFormatVersion) {
        return text("its format version is ", get(extent, kVersionAt), ", this program reads ",
                    kFormatVersion);
    }
    if (get(extent, kLayoutAt) != expected.layout) {
        return text("it belongs to another device or partition (layout ",
                    to_hex(get(extent, kLayoutAt)), " instead of ", to_hex(expected.layout), ")");
    }
    if (get(extent, kSubgroupAt) != expected.subgroup) {
        return text("it belongs to subgroup ", get(extent, kSubgroupAt));
    }
    const auto generation = static_cast<std::int64_t>(get(extent, kGenerationAt));
    if (generation != expected.generation) {
        return text("it holds generation ", generation, " instead of ", expected.generation);
    }
    const auto payload = extent.subspan(kHeaderBytes);
    if (get(extent, kPayloadBytesAt) != payload.size()) {
        return text("it holds ", get(extent, kPayloadBytesAt), " bytes instead of ",
                    payload.size());
    }
    if (digest == PayloadDigest::absent) {
        return std::nullopt;
    }
    const std::uint64_t found = xxh3(payload);
    if (get(extent, kPayloadDigestAt) != found) {
        return text("its data is damaged (checksum ", to_hex(found), " instead of ",
                    to_hex(get(extent, kPayloadDigestAt)), ")");
    }
    return std::nullopt;
}

}  // namespace nearstep::store
