// Limits the transfers of a volume's files to the rates of their links.
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

// Transfers of one file in one direction follow one another; reads run beside writes. Any thread
// may call.
class Pacer {
public:
    // One entry per file. The links and the clock outlive this.
    Pacer(const std::vector<link::DrivePaths>& files, const link::Clock& clock);

    link::Time now() const { return clock_.now(); }

    // The ticket completes when `bytes`, ready to move at time `ready`, have crossed the file's
    // links.
    Ticket cross(std::size_t file, Direction direction, std::size_t bytes, link::Time ready);

private:
    struct Way {
        link::Path path;
        link::Time over = 0;  // end of the last transfer; used by the worker alone
        Worker worker;
    };

    const link::Clock& clock_;
    std::vector<std::array<std::unique_ptr<Way>, 2>> files_;  // by direction
};

}  // namespace nearstep::store
