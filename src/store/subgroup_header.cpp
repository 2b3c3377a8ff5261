// Writes and checks the page before each subgroup. Used by volumes and restarts.
#include "store/subgroup_header.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/plain_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

namespace nearstep::store {

namespace {

constexpr std::uint64_t kFormatVersion = 1;

// Byte offsets of the fields; each field has 8 bytes.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kLayoutAt = 16;
constexpr std::size_t kSubgroupAt = 24;
constexpr std::size_t kGenerationAt = 32;
constexpr std::size_t kPayloadBytesAt = 40;
constexpr std::size_t kPayloadDigestAt = 48;
constexpr std::size_t kStateAt = 56;
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

std::uint64_t number_of_state(std::string_view id) {
    return id.empty() ? 0 : xxh3(std::as_bytes(std::span(id)));
}

void seal_page(const SubgroupHeader& header, std::span<std::byte> page, std::size_t payload_bytes,
               std::uint64_t digest) {
    expects(page.size() >= kHeaderBytes, "an extent has room for its header");
    std::fill_n(page.begin(), kHeaderBytes, std::byte{0});
    std::memcpy(page.data(), kHeaderMagic.data(), kHeaderMagic.size());
    put(page, kVersionAt, kFormatVersion);
    put(page, kLayoutAt, header.layout);
    put(page, kSubgroupAt, header.subgroup);
    put(page, kGenerationAt, static_cast<std::uint64_t>(header.generation));
    put(page, kPayloadBytesAt, payload_bytes);
    put(page, kPayloadDigestAt, digest);
    put(page, kStateAt, header.state);
    put(page, kHeaderDigestAt, xxh3(page.first(kHeaderDigestAt)));
}

bool has_digest(std::span<const std::byte> page) { return get(page, kPayloadDigestAt) != 0; }

void seal(const SubgroupHeader& header, std::span<std::byte> extent, PayloadDigest digest) {
    expects(extent.size() >= kHeaderBytes, "an extent has room for its header");
    const auto payload = extent.subspan(kHeaderBytes);
    seal_page(header, extent, payload.size(), digest == PayloadDigest::present ? xxh3(payload) : 0);
}

namespace {

using Page = std::array<std::byte, kHeaderBytes>;

// Zeros if there is no such page in a file that this user may read. Throws IoError for what may be
// temporary.
Page read_page(const std::string& path, std::size_t offset) {
    Page page{};
    const PlainFile opened = open_plain(path, O_RDONLY);
    const bool is_read = opened.file && ::pread(opened.file.get(), page.data(), page.size(),
                                                static_cast<off_t>(offset)) >= 0;
    const int code = opened.file ? errno : opened.code;
    constexpr std::array kIgnored = {ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, ELOOP, EINVAL};
    if (!is_read && std::ranges::find(kIgnored, code) == kIgnored.end()) {
        throw IoError(text("Cannot read the state file \"", path, "\" at offset ", offset, " (",
                           std::generic_category().message(code), "): try again."));
    }
    return page;
}

bool is_zero(const Page& page) {
    return std::ranges::all_of(page, [](std::byte byte) { return byte == std::byte{}; });
}

bool is_header(std::span<const std::byte> page) {
    return std::memcmp(page.data(), kHeaderMagic.data(), kHeaderMagic.size()) == 0 &&
           get(page, kHeaderDigestAt) == xxh3(page.first(kHeaderDigestAt));
}

// The state that a header names; 0 if it names none, or the page is no header of this version.
std::uint64_t state_of(std::span<const std::byte> page) {
    return is_header(page) && get(page, kVersionAt) == kFormatVersion ? get(page, kStateAt) : 0;
}

}  // namespace

std::int64_t newest_generation_in(const std::string& path) {
    const Page first = read_page(path, 0);
    if (is_zero(first)) {
        return 0;
    }
    if (!is_header(first)) {
        return std::numeric_limits<std::int64_t>::max();
    }
    const Page second = read_page(path, kHeaderBytes + get(first, kPayloadBytesAt));
    const auto generation = [](const Page& page) {
        return static_cast<std::int64_t>(get(page, kGenerationAt));
    };
    return std::max(generation(first), is_header(second) ? generation(second) : 0);
}

std::optional<StoredVersion> version_in(std::span<const std::byte> page, std::uint64_t layout) {
    if (!is_header(page) || get(page, kVersionAt) != kFormatVersion ||
        get(page, kLayoutAt) != layout) {
        return std::nullopt;
    }
    return StoredVersion{get(page, kSubgroupAt),
                         static_cast<std::int64_t>(get(page, kGenerationAt))};
}

bool is_of_other_state(const SubgroupHeader& expected, std::span<const std::byte> page) {
    const std::uint64_t state = state_of(page.first(kHeaderBytes));
    return state != 0 && state != expected.state;
}

std::uint64_t state_in(const std::string& path) { return state_of(read_page(path, 0)); }

std::optional<std::string> find_page_fault(const SubgroupHeader& expected,
                                           std::span<const std::byte> page,
                                           std::size_t payload_bytes,
                                           std::optional<std::uint64_t> digest) {
    expects(page.size() >= kHeaderBytes, "an extent has room for its header");
    if (std::memcmp(page.data(), kHeaderMagic.data(), kHeaderMagic.size()) != 0) {
        return "it has no header: it was never written, or was overwritten";
    }
    if (get(page, kHeaderDigestAt) != xxh3(page.first(kHeaderDigestAt))) {
        return "its header is damaged (checksum mismatch)";
    }
    if (get(page, kVersionAt) != kFormatVersion) {
        return text("a newer version of nearstep wrote it (format ", get(page, kVersionAt),
                    "; this one reads ", kFormatVersion, "): use that version");
    }
    if (get(page, kLayoutAt) != expected.layout) {
        return text("it belongs to another device or partition (layout ",
                    to_hex(get(page, kLayoutAt)), " instead of ", to_hex(expected.layout), ")");
    }
    if (is_of_other_state(expected, page)) {
        return "it belongs to the state of another run, or of an earlier start of this one";
    }
    if (get(page, kSubgroupAt) != expected.subgroup) {
        return text("it belongs to subgroup ", get(page, kSubgroupAt));
    }
    const auto generation = static_cast<std::int64_t>(get(page, kGenerationAt));
    if (generation != expected.generation) {
        return text("it holds generation ", generation, " instead of ", expected.generation);
    }
    if (get(page, kPayloadBytesAt) != payload_bytes) {
        return text("it holds ", get(page, kPayloadBytesAt), " bytes instead of ", payload_bytes);
    }
    if (digest && get(page, kPayloadDigestAt) != *digest) {
        return text("its data is damaged (checksum ", to_hex(*digest), " instead of ",
                    to_hex(get(page, kPayloadDigestAt)), ")");
    }
    return std::nullopt;
}

std::optional<std::string> find_fault(const SubgroupHeader& expected,
                                      std::span<const std::byte> extent, PayloadDigest digest) {
    expects(extent.size() >= kHeaderBytes, "an extent has room for its header");
    const auto payload = extent.subspan(kHeaderBytes);
    // Cheap checks first: a payload with a wrong size or owner is not digested.
    auto fault = find_page_fault(expected, extent, payload.size(), std::nullopt);
    if (!fault && digest == PayloadDigest::present) {
        fault = find_page_fault(expected, extent, payload.size(), xxh3(payload));
    }
    return fault;
}

}  // namespace nearstep::store
