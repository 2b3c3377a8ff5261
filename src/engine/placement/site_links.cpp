// The rate limits of a run's links, and a first look at its network. Called by the storage engine
// when it is made and begins.
#include "engine/placement/site_links.hpp"

#include "base/error.hpp"
#include "base/statistics.hpp"
#include "base/units.hpp"
#include "engine/placement/devices.hpp"
#include "engine/route/parameter_vector.hpp"
#include "mpi/mpi_library.hpp"
#include "mpi/topology.hpp"
#include "plan/link_rates.hpp"

#include <algorithm>
#include <cstddef>
#include <iomanip>
#include <vector>

namespace nearstep::engine {

namespace {

constexpr std::size_t kProbeBytes = 4 * MiB;  // of each rank
constexpr int kProbeTag = 1;

// Bytes per second that a node sends to the next one while it receives from the one before. The
// ranks at the same place of their nodes exchange.
double measure_network(const mpi::Communicator& world, const mpi::Topology& nodes) {
    const auto least = std::ranges::min_element(
        nodes.ranks_of,
        [](const auto& one, const auto& other) { return one.size() < other.size(); });
    const std::size_t pairs = least->size();
    const auto node =
        static_cast<std::size_t>(nodes.group_of[static_cast<std::size_t>(world.rank())]);
    const auto place = static_cast<std::size_t>(nodes.rank_in_group(world.rank()));
    const std::size_t count = nodes.ranks_of.size();
    const std::vector<std::byte> sent(place < pairs ? kProbeBytes : 0);
    std::vector<std::byte> received(sent.size());
    const auto exchange = [&] {
        world.barrier();
        return seconds_of([&] {
            if (place >= pairs) {
                return;
            }
            mpi::Request in = world.start_receive(
                received, nodes.ranks_of[(node + count - 1) % count][place], kProbeTag);
            mpi::Request out =
                world.start_send(sent, nodes.ranks_of[(node + 1) % count][place], kProbeTag);
            in.wait();
            out.wait();
        });
    };
    exchange();  // makes the connections
    const double mine = exchange();
    const std::vector<double> all = world.all_gather({&mine, 1});
    return static_cast<double>(pairs * kProbeBytes) / std::ranges::max(all);
}

}  // namespace

std::unique_ptr<shaping::NodeLinks> make_links(const mpi::Communicator& world,
                                               const config::EngineSettings& settings,
                                               const shaping::Clock& clock) {
    const shaping::Rates rates = plan::rates_of(settings.link);
    if (!rates.are_shaped()) {
        return nullptr;
    }
    const auto rank = static_cast<std::size_t>(world.rank());
    const mpi::Communicator node = world.split(discover_nodes(world, settings).group_of[rank]);
    return std::make_unique<shaping::NodeLinks>(
        rates,
        share_memory(world, node, shaping::NodeLinks::kTimesBytes,
                     {"their shaped links", "set the keys of [link] to 0"}),
        clock);
}

std::string check_network(const mpi::Communicator& world, const config::EngineSettings& settings) {
    const double expected = settings.link.network_gb_s;
    if (settings.link.scale > 0 || expected == 0) {
        return "";
    }
    const mpi::Topology nodes = discover_nodes(world, settings);
    if (nodes.groups() == 1) {
        return "";
    }
    const double measured = measure_network(world, nodes) / 1e9;
    return expected <= 2 * measured
               ? ""
               : text("warning: the site says that a node sends ", expected,
                      " GB/s (link.network_gb_s), but a first exchange had ", std::setprecision(2),
                      measured, " GB/s by ", mpi::transport_words(mpi::describe_library()),
                      ": correct the site, or see how to choose another network in "
                      "docs/cluster.md");
}

}  // namespace nearstep::engine
