#include "store/pacer.hpp"

#include <algorithm>

namespace nearstep::store {

Pacer::Pacer(const std::vector<link::DrivePaths>& files, const link::Clock& clock) : clock_(clock) {
    for (const link::DrivePaths& paths : files) {
        auto& ways = files_.emplace_back();
        for (const Direction direction : {Direction::read, Direction::write}) {
            auto way = std::make_unique<Way>();
            way->path = direction == Direction::read ? paths.read : paths.write;
            ways.at(static_cast<std::size_t>(direction)) = std::move(way);
        }
    }
}

Ticket Pacer::cross(std::size_t file, Direction direction, std::size_t bytes, link::Time ready) {
    Way& way = *files_.at(file).at(static_cast<std::size_t>(direction));
    if (way.path.empty()) {
        return {};
    }
    return way.worker.submit([this, &way, ready, bytes] {
        way.over = link::cross(way.path, std::max(ready, way.over), bytes, clock_);
    });
}

}  // namespace nearstep::store
