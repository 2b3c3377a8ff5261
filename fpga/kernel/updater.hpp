// The kernels of a device: the update of one subgroup, and the digest of its stored state.
//
// Pointers refer to the device's memory, aligned to 64 bytes. Offsets and strides are multiples of
// 64 bytes; the updater refuses others. arguments.hpp has the same arguments as tables. C++14, no
// exceptions, no containers.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/subgroup_report.hpp"
#include "fpga/kernel/word.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// How new parameters leave (docs/formats/parameter-payload.md for deltas).
enum class ParameterDelivery : std::uint32_t { parameters, deltas };

// Most tiles of a subgroup. A message's header and table of tiles stay on chip until the message is
// complete.
constexpr std::uint32_t kMostSubgroupTiles = 1024;
// Most payloads of a tile.
constexpr std::uint32_t kMostSources = 65536;

}  // namespace fpga
}  // namespace nearstep

extern "C" {

// Updates the state of `tiles` consecutive tiles in place.
//
// master_in to scales_out: all name the same memory. The subgroup's arrays
// (docs/formats/state-file.md)
//   begin at byte state_offset. Each process that reads or writes has its own argument.
// payload_heads, payload_tails: the same memory. The payload of the subgroup's tile t from source s
//   begins at payload_offset + (t * sources + s) * payload_stride. `kept` is q of topk, else 0.
// groups: the table of the tiles' parameter groups (group_table.hpp) with group_runs runs in all.
//   If group_runs is 0, it is not read and the scalars below apply.
// parameters: the new parameters, or a message of at most codec::message_room_bytes(tiles).
// report: 1 + tiles words: UpdaterTotals, then one UpdaterTile per tile.
// state_format, optimizer, codec, delivery, parameter_dtype: StateFormat, Optimizer, GradientCodec,
//   ParameterDelivery and Dtype as numbers. Deltas require 16-bit parameters.
// first_tile: number of the first tile in the parameter vector.
// gradient_scale to root_scale, random_key: UpdateScalars.
void nearstep_updater(const nearstep::fpga::Word* master_in, nearstep::fpga::Word* master_out,
                      const nearstep::fpga::Word* moment1_in, nearstep::fpga::Word* moment1_out,
                      const nearstep::fpga::Word* moment2_in, nearstep::fpga::Word* moment2_out,
                      const nearstep::fpga::Word* scales_in, nearstep::fpga::Word* scales_out,
                      const nearstep::fpga::Word* payload_heads,
                      const nearstep::fpga::Word* payload_tails, const nearstep::fpga::Word* groups,
                      nearstep::fpga::Word* parameters, nearstep::fpga::Word* report,
                      std::uint64_t state_offset, std::uint64_t payload_offset,
                      std::uint64_t first_tile, std::uint64_t random_key, std::uint32_t tiles,
                      std::uint32_t state_format, std::uint32_t optimizer, std::uint32_t codec,
                      std::uint32_t sources, std::uint32_t payload_stride, std::uint32_t kept,
                      std::uint32_t delivery, std::uint32_t parameter_dtype, float gradient_scale,
                      float beta1, float one_minus_beta1, float beta2, float one_minus_beta2,
                      float epsilon, float decay_factor, float gradient_decay, float step_size,
                      float root_scale, std::uint32_t group_runs);

// The XXH3 digest (64 bits, seed 0) of `bytes` bytes from `offset` on, as in the header of an
// extent. `bytes` is a positive multiple of 4096. `digest` receives one word: the digest in its
// first 8 bytes, then zeros.
void nearstep_digest(const nearstep::fpga::Word* memory, nearstep::fpga::Word* digest,
                     std::uint64_t offset, std::uint64_t bytes);
}
