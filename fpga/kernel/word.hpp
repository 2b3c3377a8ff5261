// The unit that the kernels move: a beat of a 512-bit AXI port. C++14, no exceptions, no
// containers.
#pragma once

#include <cstdint>

// One inside the other, because C++14 cannot write them as one.
namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

constexpr std::uint32_t kWordBytes = 64;
constexpr std::uint32_t kWordUnits = kWordBytes / 4;   // of 32 bits
constexpr std::uint32_t kWordHalves = kWordBytes / 2;  // of 16 bits
constexpr std::uint32_t kWordQuads = kWordBytes / 8;   // of 64 bits

// May alias the host's data. Kernel memory is aligned to kWordBytes.
struct [[gnu::may_alias]] Word {
    std::uint32_t of[kWordUnits];  // NOLINT(modernize-avoid-c-arrays)
};
static_assert(sizeof(Word) == kWordBytes, "a beat of a port is 512 bits");

}  // namespace fpga
}  // namespace nearstep
