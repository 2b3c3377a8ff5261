// Decides which drives of its host each rank has. Called before an engine is made.
#include "base/error.hpp"
#include "config/slurm_grant.hpp"
#include "engine/placement/devices.hpp"

#include <algorithm>
#include <array>
#include <sstream>

namespace nearstep::engine {

namespace {

// Positions of this host's devices: `given` if a rank has any (NEARSTEP_CSDS); else what Slurm says
// of the job that rank 0 is in, which is asked once for all ranks; empty without a job.
std::string find_granted(const mpi::Communicator& world, const std::string& given) {
    if (!world.agree(given.empty())) {
        return given;
    }
    std::string lines;
    world.together([&] {
        if (world.rank() == 0) {
            for (const config::HostGrant& grant : config::ask_slurm_for_grants()) {
                lines += grant.host + " " + grant.devices + "\n";
            }
        }
    });
    lines = world.broadcast(lines, 0);
    std::string mine;
    world.together([&] {
        const std::string here = config::host_in_slurm();
        std::istringstream all(lines);
        for (std::string host, devices; all >> host >> devices;) {
            mine = host == here ? devices : mine;
        }
        if (mine.empty() && !lines.empty()) {
            throw ConfigError(text("Host ", here,
                                   " is not among those on which the Slurm job has "
                                   "devices: start ranks only on the job's hosts."));
        }
    });
    return mine;
}

// Returns how many drives each rank has.
std::vector<int> divide_folders(const mpi::Communicator& world,
                                const config::EngineSettings& settings, const mpi::Topology& nodes,
                                const std::string& granted) {
    std::vector<int> holders = nodes.ranks_beside(world.rank());
    if (settings.csd.storage_ranks > 0) {
        const int computing = config::computing_ranks(settings, world.size());
        std::erase_if(holders, [&](int rank) { return rank < computing; });
    }
    const auto beside = static_cast<int>(holders.size());
    const auto found = std::ranges::find(holders, world.rank());
    const auto place = static_cast<int>(found - holders.begin());
    int mine = 0;
    world.together([&] {
        if (place < beside) {
            const int folders = config::folders_of_host(settings, granted);
            mine = std::max(1, folders / beside + (place < folders % beside ? 1 : 0));
        }
    });
    std::vector<int> devices;
    for (const double of_rank : world.all_gather(std::array{static_cast<double>(mine)})) {
        devices.push_back(static_cast<int>(of_rank));
    }
    return devices;
}

}  // namespace

PlacedSettings place_devices(const mpi::Communicator& world, const config::EngineSettings& settings,
                             const Grant& grant) {
    const mpi::Topology nodes = mpi::discover_nodes(world);  // ranks with the same csd.path
    PlacedSettings placed{settings};
    const std::string granted = find_granted(world, grant.positions);
    if (grant.divides_folders) {
        placed.csd.per_rank = divide_folders(world, settings, nodes, granted);
    }
    const std::vector<int> devices = config::drives_per_rank(placed, world.size());
    int before = 0;
    for (const int rank : nodes.ranks_beside(world.rank())) {
        before += rank < world.rank() ? devices[static_cast<std::size_t>(rank)] : 0;
    }
    const mpi::Topology counted = discover_nodes(world, settings);
    placed.nodes = counted.groups() > 1 ? counted.group_of : std::vector<int>();
    world.together([&] {
        placed.placement = placement_on(counted, placed);
        placed.places = config::places_of_devices(
            placed, before, devices[static_cast<std::size_t>(world.rank())], granted);
    });
    return placed;
}

}  // namespace nearstep::engine
