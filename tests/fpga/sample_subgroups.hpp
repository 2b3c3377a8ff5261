// Values for the updater's tests.
#pragma once

#include "csd/sample_updates.hpp"
#include "fpga/subgroup.hpp"

namespace nearstep::fpga {

using csd::random_samples;
using csd::Samples;

inline Samples edge_samples() { return csd::edge_samples(0, kEdgeTiles); }

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

}  // namespace nearstep::fpga
