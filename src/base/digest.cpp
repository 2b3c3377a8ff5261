#include "base/digest.hpp"

#include <xxhash.h>

#include <array>
#include <cinttypes>
#include <cstdio>

namespace nearstep {

std::uint64_t xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string to_hex(std::uint64_t digest) {
    std::array<char, 17> out{};
    std::snprintf(out.data(), out.size(), "%016" PRIx64, digest);
    return out.data();
}

}  // namespace nearstep
