// XXH3 digests (xxHash's library).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace nearstep {

// XXH3, 64 bits, seed 0.
std::uint64_t xxh3(std::span<const std::byte> bytes);

// 16 hexadecimal digits.
std::string to_hex(std::uint64_t digest);

}  // namespace nearstep
