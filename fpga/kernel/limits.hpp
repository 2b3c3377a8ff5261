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

// --- On-chip memory of the KU15P -----------------------------------------------------------------

constexpr std::uint32_t kBram36 = 984;  // blocks of 512 x 72 bits
constexpr std::uint32_t kUram = 128;    // blocks of 4096 x 72 bits

constexpr std::uint32_t blocks(std::uint32_t bits, std::uint32_t depth, std::uint32_t block_depth) {
    return ((bits + 71) / 72) * ((depth + block_depth - 1) / block_depth);
}
constexpr std::uint32_t bram_of(std::uint32_t bits, std::uint32_t depth) {
    return blocks(bits, depth, 512);
}
constexpr std::uint32_t uram_of(std::uint32_t bits, std::uint32_t depth) {
    return blocks(bits, depth, 4096);
}

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

constexpr std::uint32_t kUramUsed = uram_of(kWordBits, kSumWords) +
                                    uram_of(kWordBits, static_cast<std::uint32_t>(kSumDepth)) +
                                    uram_of(kWordBits, static_cast<std::uint32_t>(kFreshDepth));
static_assert(
    4 * kUramUsed <= kUram,
    "the sums and the waiting parameters leave three quarters of the URAM to the platform "
    "and to wider lanes");

// Ports of both kernels. A test counts these resources in the sources.
constexpr std::uint32_t kPorts = 11;
static_assert(kPorts <= 15, "a bank of memory takes 15 ports of kernels (UG1393)");
constexpr std::uint32_t kWordStreams = 17;    // shallow FIFOs of words
constexpr std::uint32_t kGroupStreams = 2;    // groups of lanes
constexpr std::uint32_t kNarrowStreams = 14;  // scales, pairs, sums and others
constexpr std::uint32_t kNarrowBits = 160;    // width of the widest of them
constexpr auto kShallowDepth = static_cast<std::uint32_t>(kShallow);
constexpr std::uint32_t kBramUsed =
    // Each port buffers its outstanding bursts in both directions.
    2 * kPorts * bram_of(kWordBits, kBurstWords* kBurstsUnderway) +
    kWordStreams * bram_of(kWordBits, kShallowDepth) +
    kGroupStreams * bram_of(32 * kUpdateLanes, kShallowDepth) +
    kNarrowStreams * bram_of(kNarrowBits, kShallowDepth) +
    // Bitmaps: in FIFOs, and of the tile that is being encoded.
    2 * bram_of(64, static_cast<std::uint32_t>(kBitmapDepth)) + 2 * bram_of(64, kBitmapQuads) +
    2 * bram_of(32 * kUpdateLanes, kPingPong* kBlockElems / kUpdateLanes) +
    2 * bram_of(32, static_cast<std::uint32_t>(kScaleDepth)) + bram_of(kWordBits, kFrontWords);
static_assert(2 * kBramUsed <= kBram36,
              "buffers leave half of the BRAM to the platform's shell and its DMA");

// --- The device's DRAM ---------------------------------------------------------------------------

constexpr std::uint64_t kDramBytes = 4ULL << 30U;
constexpr std::uint64_t kMostElems = static_cast<std::uint64_t>(kTileElems) * kMostSubgroupTiles;
// For the largest subgroup: an extent with its header, a payload, parameters and the report, each
// in its widest format. Several payloads need smaller subgroups or a narrower codec.
constexpr std::uint64_t kMostSlotBytes =
    4096 + (12 + 4 + 4) * kMostElems + kWordBytes + kWordBytes * std::uint64_t{kMostSubgroupTiles};
constexpr std::uint64_t kSlots = 3;  // one each for reading, updating and writing
static_assert(kSlots * kMostSlotBytes <= kDramBytes,
              "three slots of the largest subgroup fit into the 4 GB of a SmartSSD");
static_assert(12 * kMostElems + 4096 < kDramBytes,
              "each buffer is below 4 GB, the most that XRT maps as one");

}  // namespace fpga
}  // namespace nearstep
