// The arrays of a subgroup's stored state in each format, see docs/formats/state-file.md.
#pragma once

#include "config/enumerations.hpp"
#include "csd/device.hpp"
#include "csd/update_engine.hpp"

#include <array>
#include <cstddef>
#include <span>

namespace nearstep::csd {

inline constexpr std::array kStateFormats = {StateFormat::fp32, StateFormat::bf16, StateFormat::q8,
                                             StateFormat::compact};

using nearstep::name_of;

Dtype master_dtype(StateFormat format);

// Bytes of the state of whole tiles, rounded up to 4096: 12, 8, 6.03 and 4.03 per parameter.
std::size_t state_bytes(StateFormat format, std::size_t tiles);

// The state of one tile in a payload of `tiles` tiles. `payload` is aligned to 4 bytes.
StatePointers state_of_tile(StateFormat format, std::span<std::byte> payload, std::size_t tiles,
                            std::size_t tile);

// The state from element `first` of a tile on; `first` is a multiple of kBlockElems.
StatePointers state_from(StateFormat format, const StatePointers& tile, std::size_t first);

// The bytes of each array that hold the state of `count` elements, a multiple of kBlockElems; those
// of scales are empty if the format has none.
std::array<std::span<std::byte>, 5> arrays_of(StateFormat format, const StatePointers& state,
                                              std::size_t count);

// Copies the state of `count` elements, a multiple of kBlockElems.
void copy_state(StateFormat format, const StatePointers& from, std::size_t count,
                const StatePointers& to);

// Stores the state of `count` elements, a multiple of kBlockElems, in another format: rounded to
// nearest, and in the same format copied.
void convert_state(StateFormat from_format, const StatePointers& from, std::size_t count,
                   StateFormat to_format, const StatePointers& to);

// Clears the bytes of a payload that follow its arrays.
void clear_after_arrays(StateFormat format, std::span<std::byte> payload, std::size_t tiles);

// Stores fp32 state, rounded to nearest. Values from widen() are stored unchanged. Without spans
// for moments these are zero, in any format zero bytes.
void narrow(StateFormat format, const StateArrays& from, std::span<std::byte> payload);

// Leaves moments out if there are no spans for them.
void widen(StateFormat format, std::span<std::byte> payload, const StateArrays& to);

}  // namespace nearstep::csd
