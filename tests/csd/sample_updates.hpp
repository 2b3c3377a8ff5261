// State and gradients for tests of engines and kernels: ordinary values and those at the edges of
// fp32.
#pragma once

#include "csd/device.hpp"
#include "support/test.hpp"
#include "support/update_values.hpp"

namespace nearstep::csd {

struct Samples {
    explicit Samples(std::size_t elems = shard::kTileElems)
        : gradient(elems), master(elems), moment1(elems), moment2(elems) {}

    StateArrays state() { return {master, moment1, moment2}; }

    std::vector<float> gradient;
    std::vector<float> master;
    std::vector<float> moment1;
    std::vector<float> moment2;
};

inline Samples random_samples(std::uint64_t seed, std::size_t elems = shard::kTileElems) {
    Samples samples(elems);
    for (std::size_t i = 0; i < elems; ++i) {
        samples.gradient[i] = static_cast<float>(random_normal(seed, 0, i) * 1e-2);
        samples.master[i] = static_cast<float>(random_normal(seed, 1, i) * 0.3);
        samples.moment1[i] = static_cast<float>(random_normal(seed, 2, i) * 1e-3);
        samples.moment2[i] = static_cast<float>(random_uniform(seed, 3, i) * 1e-4);
    }
    return samples;
}

// The tiles of every combination from this one on. Each gradient with its moments has its own block
// with every master, so that a NaN does not spoil other moments.
inline Samples edge_samples(std::size_t first, std::size_t tiles) {
    using arith::kBlockElems;
    using arith::kEdges;
    Samples samples(tiles * shard::kTileElems);
    for (std::size_t i = 0; i < samples.master.size(); ++i) {
        const std::size_t block = first * (shard::kTileElems / kBlockElems) + i / kBlockElems;
        samples.gradient[i] = kEdges.at(block % 14);
        samples.moment1[i] = kEdges.at(block / 14 % 14);
        samples.moment2[i] = kEdges.at(block / 196 % 14);
        samples.master[i] = kEdges.at(i % kBlockElems % 14);
    }
    return samples;
}

}  // namespace nearstep::csd
