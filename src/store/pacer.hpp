// Holds the transfers of a volume's files to the rates of the links that they cross.
#pragma once

#include "link/link.hpp"
#include "link/node_links.hpp"
#include "store/file.hpp"
#include "store/ticket.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace nearstep::store {

// The transfers of a file cross one after another in each direction, reads beside writes. Any
// thread may call.
class Pacer {
public:
    // One entry per file. The links and the clock outlive this.
    Pacer(const std::vector<link::DrivePaths>& files, const link::Clock& clock);

    link::Time now() const { return clock_.now(); }

    // Complete when bytes that are there to be moved from `ready` on have crossed.
    Ticket cross(std::size_t file, Direction direction, std::size_t bytes, link::Time ready);

private:
    struct Way {
        link::Path path;
        link::Time over = 0;  // of the last transfer; used by the lane alone
        Lane lane;
    };

    const link::Clock& clock_;
    std::vector<std::array<std::unique_ptr<Way>, 2>> files_;  // by direction
};

}  // namespace nearstep::store
