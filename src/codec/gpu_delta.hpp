// Delta messages applied to parameters in a GPU's memory, with the bits that DeltaReader gives.
#pragma once

#include "codec/delta.hpp"
#include "memory/gpu.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace nearstep::codec {

// Of one start_deltas().
constexpr std::size_t kMostDeltas = 64;

// All addresses but the reader's are of the GPU's memory, aligned to 16 bytes where not said
// otherwise, and do not overlap.
struct GpuDelta {
    // Of the message on the host, which it need not outlive.
    const DeltaReader* reader = nullptr;

    // The reader's bytes() of it; nothing is read behind them.
    const std::byte* message = nullptr;

    // Those of the reader's tiles: the old ones, and then the new.
    std::uint16_t* parameters = nullptr;

    // What came of it, for fault_of(); zero before. Aligned to 4 bytes.
    std::uint32_t* verdict = nullptr;
};

// Applies messages, each to its own tiles, all at once. Returns at once: the work is done in the
// stream's order. Any thread that uses the GPU may call.
//
// Returns what is wrong, as DeltaReader::apply_to(), if the table of a message cannot be one; then
// nothing is applied. What else is wrong, with the payloads or the old parameters, is in the
// verdicts, and the parameters of these messages are neither.
[[nodiscard]] std::optional<std::string> start_deltas(std::span<const GpuDelta> deltas,
                                                      const memory::Stream& stream);

// What is wrong, given the verdict once the work is done.
std::optional<std::string> fault_of(const DeltaReader& reader, std::uint32_t verdict);

}  // namespace nearstep::codec
