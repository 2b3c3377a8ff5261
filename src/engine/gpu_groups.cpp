#include "engine/gpu_groups.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <chrono>

namespace nearstep::engine {

std::string obstacle_in_groups(const mpi::Communicator& world, const mpi::Topology& groups,
                               std::optional<int> gpu) {
    const mpi::Communicator ranks =
        world.split(groups.group_of[static_cast<std::size_t>(world.rank())]);
    const std::optional<std::string> mine = nccl::find_obstacle(ranks, gpu);
    std::string obstacle;
    try {
        world.together([&] {
            if (ranks.size() > 1 && mine) {
                throw ConfigError(*mine);
            }
        });
    } catch (const ConfigError& error) {  // of the lowest rank
        obstacle = error.what();
    }
    return obstacle;
}

void start_group(const mpi::Communicator& ranks, int gpu, const config::EngineSettings& settings,
                 std::optional<nccl::Watchdog>& watchdog, std::optional<nccl::Group>& group) {
    if (!watchdog) {
        watchdog.emplace();
    }
    group.emplace(ranks, gpu, *watchdog, std::chrono::seconds(settings.exchange.timeout_s));
}

bool is_each_alone(const mpi::Topology& groups) {
    return std::all_of(groups.ranks_of.begin(), groups.ranks_of.end(),
                       [](const auto& ranks) { return ranks.size() == 1; });
}

std::string nccl_words() { return text(" (NCCL ", nccl::library_version(), ")"); }

}  // namespace nearstep::engine
