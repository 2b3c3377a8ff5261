#include "engine/site_links.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "link/shared_times.hpp"
#include "mpi/topology.hpp"

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

link::Rates rates_of(const config::LinkSettings& settings) {
    if (!settings.are_shaped()) {
        return {};
    }
    const double scale = settings.scale * 1e9;
    return {.device_read = settings.device_read_gb_s * scale,
            .device_write = settings.device_write_gb_s * scale,
            .host = settings.host_gb_s * scale,
            .host_total = settings.host_total_gb_s * scale,
            .network = settings.network_gb_s * scale};
}

double update_rate_of(const config::EngineSettings& settings) {
    return settings.mode == config::Mode::base
               ? 0
               : settings.csd.update_mparam_s * 1e6 * settings.link.scale;
}

std::unique_ptr<link::NodeLinks> make_links(const mpi::Communicator& world,
                                            const config::EngineSettings& settings,
                                            const link::Clock& clock) {
    const link::Rates rates = rates_of(settings.link);
    return rates.are_shaped()
               ? std::make_unique<link::NodeLinks>(
                     rates, share_times(world, settings.exchange.ranks_per_node), clock)
               : nullptr;
}

std::string describe_links(const config::EngineSettings& settings) {
    const link::Rates rates = rates_of(settings.link);
    std::string out;
    const auto add = [&out](const char* name, double rate) {
        if (rate > 0) {
            out += text(out.empty() ? "" : ", ", name, " ", human_bytes(rate), "/s");
        }
    };
    add("device read", rates.device_read);
    add("device write", rates.device_write);
    add("host link each way", rates.host);
    add("host link both ways", rates.host_total);
    add("network", rates.network);
    if (update_rate_of(settings) > 0) {
        out +=
            text(out.empty() ? "" : ", ", "engine ", update_rate_of(settings) / 1e6, " Mparam/s");
    }
    return out.empty() ? ""
                       : text("shaped links (real transfers, delayed; rates x ",
                              settings.link.scale, "): ", out);
}

}  // namespace nearstep::engine
