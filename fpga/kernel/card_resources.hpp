// The resources of a SmartSSD that the kernels may use, and how they use them.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/group_table.hpp"
#include "fpga/kernel/stream.hpp"
#include "fpga/kernel/updater.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

constexpr std::uint32_t kTileElems = 65536;
constexpr std::uint32_t kUpdateLanes = 4;   // parameters updated per cycle
constexpr std::uint32_t kDecodeLanes = 16;  // gradients decoded and summed per cycle
constexpr std::uint32_t kClockMhz = 250;

static_assert(kDecodeLanes == kWordUnits, "the sum of payloads travels as words of fp32");
static_assert(kDecodeLanes % kUpdateLanes == 0, "a decoded word is whole groups of lanes");
static_assert(kScaleElems % kDecodeLanes == 0, "a decoded word lies in one block of a payload");
static_assert(kBlockElems % kDecodeLanes == 0, "a decoded word lies in one block of the state");
static_assert(kDecodeLanes == kRunElems, "a decoded word is of one parameter group");
static_assert(kTileElems % kPieceElems == 0, "a tile is whole pieces");

// --- Bursts --------------------------------------------------------------------------------------

constexpr std::uint32_t kBurstWords = 64;
constexpr std::uint32_t kBurstsUnderway = 8;  // per channel
static_assert(kBurstWords <= 256, "AXI4 bursts have 256 beats at most");
static_assert(kBurstWords * kWordBytes <= 4096, "AXI4 bursts do not cross 4 KiB");
static_assert(4096 % (kBurstWords * kWordBytes) == 0,
              "bursts that start at pages end at pages, where arrays of whole tiles begin and end");

// True if a tile's elements, each of `bits` bits, fill whole bursts.
constexpr bool are_whole_bursts(std::uint32_t bits) {
    return kTileElems / 8 * bits % (kBurstWords * kWordBytes) == 0;
}
static_assert(are_whole_bursts(8) && are_whole_bursts(16) && are_whole_bursts(32),
              "masters, moments and parameters of a tile are whole bursts, so each tile begins at "
              "a burst whatever its formats");
static_assert(4096 % (kTileElems / kBlockElems * sizeof(float)) == 0,
              "the scales of a tile, which are one burst, do not cross 4 KiB");
static_assert(static_cast<std::uint64_t>(kMostSubgroupTiles) * kTileElems <= 0xFFFFFFFFU &&
                  static_cast<std::uint64_t>(kMostSubgroupTiles) * kMostSources <= 0xFFFFFFFFU,
              "elements and payloads of a subgroup are counted in 32 bits");

// --- Compute units -------------------------------------------------------------------------------

constexpr std::uint32_t kMostPorts = 15;    // of kernels at a bank of memory (UG1393)
constexpr std::uint32_t kMostUpdaters = 2;  // beside nearstep_digest; a test counts their ports

// --- On-chip memory of the KU15P: 984 BRAM36 and 128 URAM ----------------------------------------

constexpr std::uint32_t kWordBits = 512;
constexpr std::uint32_t kTileWordsOfHalves = kTileElems / kWordHalves;

// Sums of a tile's payloads; used if there is more than one payload.
constexpr std::uint32_t kSumWords = kTileElems / kDecodeLanes;
constexpr int kSumDepth = static_cast<int>(kSumWords);
// New parameters wait until their delta's form is chosen. The FIFO holds two tiles, so that one is
// filled while the other is encoded.
constexpr int kFreshDepth = 2 * static_cast<int>(kTileWordsOfHalves);
// The bitmaps wait too, in 64-bit words.
constexpr std::uint32_t kBitmapQuads = kTileElems / 64;
constexpr int kBitmapDepth = 2 * static_cast<int>(kBitmapQuads);
// Moments wait for their block's scale in a ping-pong buffer of two blocks.
constexpr std::uint32_t kPingPong = 2;
// Scales of a tile wait until they fill whole bursts.
constexpr int kScaleDepth = 2 * static_cast<int>(kTileElems / kBlockElems);
// A message's header and table wait until the message is complete.
static_assert((kDeltaHeaderBytes / 8) % 2 == 1 && kDeltaEntryBytes == 16,
              "a table ends within a word, which the first payload shares");
constexpr std::uint32_t kFrontWords =
    (kDeltaHeaderBytes + kDeltaEntryBytes * kMostSubgroupTiles) / kWordBytes + 1;

constexpr auto kShallowDepth = static_cast<std::uint32_t>(kShallow);

// --- The device's DRAM ---------------------------------------------------------------------------

constexpr std::uint64_t kDramBytes = 4ULL << 30U;
constexpr std::uint64_t kMostElems = static_cast<std::uint64_t>(kTileElems) * kMostSubgroupTiles;
// The bytes of a slot for the largest subgroup: an extent with its header, a payload, parameters
// and the report, each in its widest format. Several payloads need smaller subgroups or a narrower
// codec.
constexpr std::uint64_t kMostSlotBytes =
    4096 + (12 + 4 + 4) * kMostElems + kWordBytes + kWordBytes * std::uint64_t{kMostSubgroupTiles};
constexpr std::uint64_t kSlots = 3;  // one each for reading, updating and writing
static_assert(kSlots * kMostSlotBytes <= kDramBytes,
              "three slots of the largest subgroup fit into the 4 GB of a SmartSSD");
static_assert(12 * kMostElems + 4096 < kDramBytes,
              "each buffer is below 4 GB, the most that XRT maps as one");

}  // namespace fpga
}  // namespace nearstep
