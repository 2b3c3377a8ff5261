// Tiles that are difficult for codecs.
#pragma once

#include "base/dtype.hpp"
#include "base/random.hpp"
#include "base/words.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace nearstep::codec {

inline std::vector<float> tile_of(const std::function<float(std::size_t)>& value) {
    std::vector<float> tile(shard::kTileElems);
    for (std::size_t i = 0; i < tile.size(); ++i) {
        tile[i] = value(i);
    }
    return tile;
}

inline float noise(std::size_t i) { return static_cast<float>(random_normal(9, 1, i)); }

inline std::vector<float> random_tile(std::uint64_t seed) {
    return tile_of([seed](std::size_t i) { return static_cast<float>(random_normal(seed, 0, i)); });
}

// Random, constant, zero, subnormal and huge tiles, tiles with many ties, and some with NaN and
// infinity.
inline std::vector<std::vector<float>> nasty_tiles() {
    const auto special = [](std::size_t i) {
        constexpr std::array<float, 4> kSpecial = {std::numeric_limits<float>::quiet_NaN(),
                                                   INFINITY, -INFINITY, -0.0F};
        return i % 997 == 0 ? kSpecial.at(i / 997 % 4) : noise(i);
    };
    return {random_tile(3),
            tile_of([](std::size_t i) { return noise(i) * std::exp(3 * noise(i + 99999)); }),
            tile_of([](std::size_t) { return -0.375F; }),
            tile_of([](std::size_t i) { return i % 2 == 0 ? 0.0F : -0.0F; }),
            tile_of([](std::size_t i) { return noise(i) * 1e-39F; }),
            tile_of([](std::size_t i) { return noise(i) * 3e-30F; }),
            tile_of([](std::size_t i) { return static_cast<float>(i % 15) - 7.0F; }),
            tile_of([](std::size_t i) { return 0.5F * static_cast<float>(i % 255) - 63.5F; }),
            tile_of([](std::size_t i) { return noise(i) * 1e38F; }),
            tile_of([](std::size_t i) { return i / 64 % 2 == 0 ? 0.0F : noise(i); }),
            tile_of(special)};
}

// Compares bits; all NaNs count as equal.
inline bool same_bits(std::span<const float> one, std::span<const float> other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](float a, float b) {
        return (std::isnan(a) && std::isnan(b)) || bits_of(a) == bits_of(b);
    });
}

}  // namespace nearstep::codec
