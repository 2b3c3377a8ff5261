// Applies delta messages to parameters in GPU memory, with the same bits as DeltaReader.
#pragma once

#include "codec/delta.hpp"
#include "memory/gpu.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace nearstep::codec {

// Most messages in one start_deltas() call.
constexpr std::size_t kMostDeltas = 64;

// All addresses but `reader` are in GPU memory, aligned to 16 bytes unless stated otherwise, and do
// not overlap.
struct GpuDelta {
    // Reads the message's copy on the host. Need not outlive the call.
    const DeltaReader* reader = nullptr;

    // The message: reader->bytes() bytes; nothing behind them is read.
    const std::byte* message = nullptr;

    // The parameters of the reader's tiles: old on entry, new afterwards.
    std::uint16_t* parameters = nullptr;

    // The result, for fault_of(). Must be zero at the start. Aligned to 4 bytes.
    std::uint32_t* verdict = nullptr;
};

// Applies messages in parallel, each to its own tiles. Returns at once; the work runs in stream
// order. Any thread that uses the GPU may call.
//
// If the table of a message is invalid, returns the error sentence of DeltaReader::apply_to() and
// applies nothing. Errors in payloads or old parameters are reported in the verdicts; the
// parameters of such a message are then neither the old nor the new ones.
[[nodiscard]] std::optional<std::string> start_deltas(std::span<const GpuDelta> deltas,
                                                      const memory::Stream& stream);

// The error sentence for a verdict; none if it is 0. Call it when the work is done.
std::optional<std::string> fault_of(const DeltaReader& reader, std::uint32_t verdict);

}  // namespace nearstep::codec
