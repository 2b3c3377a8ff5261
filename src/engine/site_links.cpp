#include "engine/site_links.hpp"

#include "link/shared_times.hpp"
#include "mpi/topology.hpp"
#include "plan/link_rates.hpp"

#include <optional>
#include <utility>

namespace nearstep::engine {

namespace {

// Memory that the ranks of the node share. Its name is removed before return.
link::SharedTimes share_times(const mpi::Communicator& world, int ranks_per_node) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const mpi::Communicator node =
        world.split(mpi::discover_nodes(world, ranks_per_node).group_of[rank]);
    std::string name = node.rank() == 0 ? link::SharedTimes::unused_name() : "";
    name = node.broadcast(name, 0);
    std::optional<link::SharedTimes> times;
    world.together([&] {
        if (node.rank() == 0) {
            times = link::SharedTimes::create(name);
        }
    });
    world.together([&] {
        if (node.rank() != 0) {
            times = link::SharedTimes::open(name);
        }
    });
    if (node.rank() == 0) {
        link::SharedTimes::remove(name);
    }
    return *std::move(times);
}

}  // namespace

std::unique_ptr<link::NodeLinks> make_links(const mpi::Communicator& world,
                                            const config::EngineSettings& settings,
                                            const link::Clock& clock) {
    const link::Rates rates = plan::rates_of(settings.link);
    return rates.are_shaped()
               ? std::make_unique<link::NodeLinks>(
                     rates, share_times(world, settings.exchange.ranks_per_node), clock)
               : nullptr;
}

}  // namespace nearstep::engine
