// Refuses start values that are infinite or NaN, with which no step could count.
#pragma once

#include "base/dtype.hpp"
#include "mpi/communicator.hpp"
#include "nearstep/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace nearstep::engine {

class StartValueCheck {
public:
    // `layout` outlives this.
    explicit StartValueCheck(const Layout& layout);

    // Looks at masters from the place `first` in the parameter vector on, in one pass while they
    // are in the cache. Any thread may call.
    void look(std::size_t first, std::span<const float> masters);

    // Throws ConfigError, on all ranks, if a rank of `world` has seen a value that is not finite in
    // the format of the parameters. `copies`: how many ranks saw each value. Collective.
    void refuse(const mpi::Communicator& world, int copies);

private:
    bool is_finite(float value) const { return (bits_of(value) & 0x7FFFFFFFU) < limit_; }

    const Layout& layout_;
    std::uint32_t limit_;  // the bits of the least magnitude that becomes infinite
    std::mutex mutex_;
    std::vector<std::uint64_t> counts_;  // of such values, by tensor
};

}  // namespace nearstep::engine
