#include "base/error.hpp"
#include "config/slurm_grant.hpp"
#include "engine/placement/placed.hpp"

#include <sstream>

namespace nearstep::engine {

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

}  // namespace nearstep::engine
