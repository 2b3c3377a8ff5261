// Sizes and places of stored arrays, and their conversion. Used by devices and their engines.
#include "csd/state_format.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "store/subgroup_header.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace nearstep::csd {

using arith::kBlockElems;
using shard::kTileElems;

namespace {

constexpr std::size_t kTileBlocks = kTileElems / kBlockElems;
constexpr std::size_t kPageBytes = store::kHeaderBytes;
static_assert(kTileElems % kPageBytes == 0, "arrays of whole tiles are whole pages");

struct ElementBytes {
    std::size_t master;
    std::size_t moment;
    std::size_t scales_of_block;  // of both moments
};

ElementBytes element_bytes(StateFormat format) {
    constexpr std::array<ElementBytes, kWords<StateFormat>.size()> kBytes = {
        {{4, 4, 0}, {4, 2, 0}, {4, 1, 2 * sizeof(float)}, {2, 1, 2 * sizeof(float)}}};
    return kBytes.at(index_of(format));
}

bool has_scales(StateFormat format) { return element_bytes(format).scales_of_block != 0; }

void narrow_block(const float* moment1, const float* moment2, const StatePointers& state,
                  std::size_t block) {
    std::array<float, kBlockElems> roots{};
    std::transform(moment2, moment2 + kBlockElems, roots.begin(),
                   [](float value) { return std::sqrt(value); });
    const std::size_t at = block * kBlockElems;
    state.scale1[block] = arith::encode_block<arith::FirstMoment>(
        moment1, static_cast<std::int8_t*>(state.moment1) + at, kBlockElems);
    state.scale2[block] = arith::encode_block<arith::SecondMoment>(
        roots.data(), static_cast<std::uint8_t*>(state.moment2) + at, kBlockElems);
}

void widen_block(const StatePointers& state, std::size_t block, float* moment1, float* moment2) {
    const auto* codes1 = static_cast<const std::int8_t*>(state.moment1) + block * kBlockElems;
    const auto* codes2 = static_cast<const std::uint8_t*>(state.moment2) + block * kBlockElems;
    for (std::size_t i = 0; i < kBlockElems; ++i) {
        moment1[i] = arith::decode_moment1(codes1[i], state.scale1[block]);
        moment2[i] = arith::decode_moment2(codes2[i], state.scale2[block]);
    }
}

Dtype moment_dtype(StateFormat format) {
    return format == StateFormat::bf16 ? Dtype::bf16 : Dtype::fp32;
}

// Narrows as many elements as there are masters, and leaves moments out if there are no spans for
// them; so does widen_elements().
void narrow_elements(StateFormat format, const StateArrays& from, const StatePointers& to) {
    const std::size_t count = from.master.size();
    convert_from_fp32(from.master.data(), master_dtype(format), to.master, count);
    if (from.moment1.empty()) {
        return;
    }
    if (!has_scales(format)) {
        convert_from_fp32(from.moment1.data(), moment_dtype(format), to.moment1, count);
        convert_from_fp32(from.moment2.data(), moment_dtype(format), to.moment2, count);
        return;
    }
    for (std::size_t block = 0; block < count / kBlockElems; ++block) {
        narrow_block(&from.moment1[block * kBlockElems], &from.moment2[block * kBlockElems], to,
                     block);
    }
}

void widen_elements(StateFormat format, const StatePointers& from, const StateArrays& to) {
    const std::size_t count = to.master.size();
    convert_to_fp32(master_dtype(format), from.master, to.master.data(), count);
    if (to.moment1.empty()) {
        return;
    }
    if (!has_scales(format)) {
        convert_to_fp32(moment_dtype(format), from.moment1, to.moment1.data(), count);
        convert_to_fp32(moment_dtype(format), from.moment2, to.moment2.data(), count);
        return;
    }
    for (std::size_t block = 0; block < count / kBlockElems; ++block) {
        widen_block(from, block, &to.moment1[block * kBlockElems],
                    &to.moment2[block * kBlockElems]);
    }
}

// The arrays of a tile.
StateArrays tile_of(const StateArrays& state, std::size_t tile) {
    const auto part = [tile](std::span<float> array) {
        return array.empty() ? array : array.subspan(tile * kTileElems, kTileElems);
    };
    return {part(state.master), part(state.moment1), part(state.moment2)};
}

std::size_t bytes_of_arrays(StateFormat format, std::size_t tiles) {
    const ElementBytes bytes = element_bytes(format);
    return tiles *
           (kTileElems * (bytes.master + 2 * bytes.moment) + kTileBlocks * bytes.scales_of_block);
}

}  // namespace

Dtype master_dtype(StateFormat format) {
    return format == StateFormat::compact ? Dtype::bf16 : Dtype::fp32;
}

std::size_t state_bytes(StateFormat format, std::size_t tiles) {
    return round_up(bytes_of_arrays(format, tiles), kPageBytes);
}

StatePointers state_of_tile(StateFormat format, std::span<std::byte> payload, std::size_t tiles,
                            std::size_t tile) {
    expects(payload.size() == state_bytes(format, tiles) && tile < tiles,
            "the payload has its tiles' size");
    const ElementBytes bytes = element_bytes(format);
    const std::size_t count = tiles * kTileElems;
    const std::size_t at = tile * kTileElems;
    std::byte* moments = payload.data() + count * bytes.master;
    StatePointers state;
    state.master = payload.data() + at * bytes.master;
    state.moment1 = moments + at * bytes.moment;
    state.moment2 = moments + (count + at) * bytes.moment;
    if (has_scales(format)) {
        auto* scales = reinterpret_cast<float*>(moments + 2 * count * bytes.moment);
        state.scale1 = scales + tile * kTileBlocks;
        state.scale2 = scales + (tiles + tile) * kTileBlocks;
    }
    return state;
}

StatePointers state_from(StateFormat format, const StatePointers& tile, std::size_t first) {
    const ElementBytes bytes = element_bytes(format);
    const auto moved = [first](void* array, std::size_t bytes_each) {
        return static_cast<std::byte*>(array) + first * bytes_each;
    };
    StatePointers state;
    state.master = moved(tile.master, bytes.master);
    state.moment1 = moved(tile.moment1, bytes.moment);
    state.moment2 = moved(tile.moment2, bytes.moment);
    if (has_scales(format)) {
        state.scale1 = tile.scale1 + first / arith::kBlockElems;
        state.scale2 = tile.scale2 + first / arith::kBlockElems;
    }
    return state;
}

std::array<std::span<std::byte>, 5> arrays_of(StateFormat format, const StatePointers& state,
                                              std::size_t count) {
    const ElementBytes bytes = element_bytes(format);
    const auto span_of = [](void* array, std::size_t size) {
        return std::span(static_cast<std::byte*>(array), size);
    };
    const std::size_t scales = has_scales(format) ? count / kBlockElems * sizeof(float) : 0;
    return {span_of(state.master, count * bytes.master),
            span_of(state.moment1, count * bytes.moment),
            span_of(state.moment2, count * bytes.moment), span_of(state.scale1, scales),
            span_of(state.scale2, scales)};
}

void copy_state(StateFormat format, const StatePointers& from, std::size_t count,
                const StatePointers& to) {
    const auto sources = arrays_of(format, from, count);
    const auto targets = arrays_of(format, to, count);
    for (std::size_t array = 0; array < sources.size(); ++array) {
        std::ranges::copy(sources.at(array), targets.at(array).begin());
    }
}

void convert_state(StateFormat from_format, const StatePointers& from, std::size_t count,
                   StateFormat to_format, const StatePointers& to) {
    if (from_format == to_format) {
        copy_state(from_format, from, count, to);
        return;
    }
    std::array<float, 3 * kBlockElems> wide{};
    const std::span all(wide);
    const StateArrays block{all.first(kBlockElems), all.subspan(kBlockElems, kBlockElems),
                            all.last(kBlockElems)};
    for (std::size_t first = 0; first < count; first += kBlockElems) {
        widen_elements(from_format, state_from(from_format, from, first), block);
        narrow_elements(to_format, block, state_from(to_format, to, first));
    }
}

void clear_after_arrays(StateFormat format, std::span<std::byte> payload, std::size_t tiles) {
    std::ranges::fill(payload.subspan(bytes_of_arrays(format, tiles)), std::byte{0});
}

void narrow(StateFormat format, const StateArrays& from, std::span<std::byte> payload) {
    const std::size_t tiles = from.master.size() / kTileElems;
    if (from.moment1.empty()) {
        std::ranges::fill(payload, std::byte{0});
    } else {
        clear_after_arrays(format, payload, tiles);
    }
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        narrow_elements(format, tile_of(from, tile), state_of_tile(format, payload, tiles, tile));
    }
}

void widen(StateFormat format, std::span<std::byte> payload, const StateArrays& to) {
    const std::size_t tiles = to.master.size() / kTileElems;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        widen_elements(format, state_of_tile(format, payload, tiles, tile), tile_of(to, tile));
    }
}

}  // namespace nearstep::csd
