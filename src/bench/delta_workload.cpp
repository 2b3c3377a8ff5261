#include "bench/delta_workload.hpp"

#include "base/random.hpp"

#include <algorithm>

namespace nearstep::bench {

void fill_parameters(const Shares& shares, std::span<std::uint16_t> old,
                     std::span<std::uint16_t> fresh) {
    for (std::size_t i = 0; i < kMessageElems; ++i) {
        const std::uint64_t bits = random_bits(1, 0, i);
        const double draw = random_uniform(1, 1, i);
        const int unit = (bits & 1U) != 0 ? 1 : -1;
        const int jump = draw < shares.escaped ? 2 + static_cast<int>((bits >> 1U) % 100) : 1;
        old[i] = static_cast<std::uint16_t>(bits >> 32U);
        fresh[i] =
            static_cast<std::uint16_t>(draw < shares.changed ? old[i] + unit * jump : old[i]);
    }
    for (std::size_t at = kMessageElems; at < old.size(); at += kMessageElems) {
        std::ranges::copy(old.first(kMessageElems), old.data() + at);
        std::ranges::copy(fresh.first(kMessageElems), fresh.data() + at);
    }
}

}  // namespace nearstep::bench
