// Values for the updater's tests: ordinary ones and those at the edges of fp32.
#pragma once

#include "base/random.hpp"
#include "csd/device.hpp"
#include "fpga/kernel/arithmetic.hpp"
#include "fpga/subgroup.hpp"
#include "support/update_values.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace nearstep::fpga {

struct Samples {
    explicit Samples(std::size_t elems)
        : gradient(elems), master(elems), moment1(elems), moment2(elems) {}

    csd::StateArrays state() { return {master, moment1, moment2}; }

    std::vector<float> gradient;
    std::vector<float> master;
    std::vector<float> moment1;
    std::vector<float> moment2;
};

inline Samples random_samples(std::uint64_t seed, std::size_t elems) {
    Samples samples(elems);
    for (std::size_t i = 0; i < elems; ++i) {
        samples.gradient[i] = static_cast<float>(random_normal(seed, 0, i) * 1e-2);
        samples.master[i] = static_cast<float>(random_normal(seed, 1, i) * 0.3);
        samples.moment1[i] = static_cast<float>(random_normal(seed, 2, i) * 1e-3);
        samples.moment2[i] = static_cast<float>(random_uniform(seed, 3, i) * 1e-4);
    }
    return samples;
}

// A subgroup with random state and gradients, of which each source has the last one's in reverse.
inline Subgroup random_subgroup(const SubgroupSettings& settings, std::uint64_t seed) {
    Subgroup made(settings);
    Samples samples = random_samples(seed, made.elems());
    made.set_state(samples.state());
    for (std::size_t source = 0; source < settings.sources; ++source) {
        made.set_gradient(source, samples.gradient);
        std::ranges::reverse(samples.gradient);
    }
    return made;
}

// Every combination. Each gradient with its moments has its own block with every master, so that a
// NaN does not spoil other moments.
inline Samples edge_samples() {
    Samples samples(kEdgeTiles * shard::kTileElems);
    for (std::size_t i = 0; i < samples.master.size(); ++i) {
        const std::size_t block = i / kBlockElems;
        samples.gradient[i] = kEdges.at(block % 14);
        samples.moment1[i] = kEdges.at(block / 14 % 14);
        samples.moment2[i] = kEdges.at(block / 196 % 14);
        samples.master[i] = kEdges.at(i % kBlockElems % 14);
    }
    return samples;
}

}  // namespace nearstep::fpga
