// Sums of squares of what payloads on a GPU decode to, with the bits of codec/squares.hpp.
#pragma once

#include "codec/codec.hpp"
#include "codec/squares.hpp"
#include "memory/gpu.hpp"

#include <cstddef>

namespace nearstep::codec {

// sums: kSquarePieces for each of `tiles` payloads of make_codec(settings), of all elements of
// their pieces: of a vector's last tile whose padding does not decode to zeros (`sign`), take the
// host's. All addresses are of the GPU's memory, aligned to 16 bytes. Reads the payloads once and
// returns at once: the work is done in the stream's order.
void sum_squares(const CodecSettings& settings, const std::byte* payloads, std::size_t tiles,
                 double* sums, const memory::Stream& stream);

}  // namespace nearstep::codec
