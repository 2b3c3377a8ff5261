// Decides how many places state has. Called by find_start().
#include "engine/placement/spare_places.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "csd/gradient_log.hpp"
#include "csd/payload_memory.hpp"
#include "csd/state_layout.hpp"
#include "engine/placement/devices.hpp"
#include "engine/route/gradient_route.hpp"
#include "plan/kept_state.hpp"
#include "store/storage_folder.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace nearstep::engine {

namespace {

// Whether all of this rank's state that is not in GPU memory lies in host memory.
bool lies_in_memory(const PlacedSettings& settings, int rank, int ranks) {
    const std::vector<std::string> files = state_files(settings, rank, ranks, 0);
    const std::vector<config::Tier> tiers = tiers_of(settings, rank, ranks);
    for (std::size_t device = 0; device < files.size(); ++device) {
        const std::string folder = store::nearest_present(store::folder_of(files[device]));
        if (tiers[device] != config::Tier::gpu && !store::lies_in_memory(folder)) {
            return false;
        }
    }
    return true;
}

std::size_t log_tile_bytes(const PlacedSettings& settings, Dtype dtype,
                           const mpi::Topology& nodes) {
    const GradientRoute route(settings, dtype, nodes);
    return csd::PayloadMemory::tile_bytes(route.most_handover_bytes(),
                                          static_cast<std::size_t>(route.sources()));
}

// The bytes of a rank's state, and of one update in its logs.
struct Sizes {
    std::size_t state_bytes = 0;
    std::size_t update_bytes = 0;
};

Sizes sizes_of(const PlacedSettings& settings, const shard::Replica& copy, int rank, int ranks,
               std::size_t tile_bytes) {
    Sizes sizes;
    const std::vector<std::string> files = state_files(settings, rank, ranks, 0);
    for (const csd::StateVolumeSettings& volume : state_volumes(settings, rank, copy, files)) {
        const csd::StateLayout places(volume.subgroups, volume.state, false);
        const csd::LoggedState of_device =
            csd::logged_state(places, places.tiles() * tile_bytes, 1);
        sizes.state_bytes += of_device.memory_bytes();
        sizes.update_bytes += of_device.log_bytes;
    }
    return sizes;
}

void expect_memory(const PlacedSettings& settings, std::size_t state_bytes,
                   std::size_t ranks_of_host) {
    const std::size_t available = machine_memory().available_bytes / ranks_of_host;
    if (state_bytes > available) {
        throw ConfigError(text(Term::log, " = \"", settings.csd.log.front(),
                               "\" keeps all state of a rank in memory, ",
                               human_bytes(static_cast<double>(state_bytes)), ", but ",
                               human_bytes(static_cast<double>(available)), " are free: leave ",
                               Term::log,
                               " out, so that each step writes all state, or use more hosts, "
                               "or a smaller ",
                               Term::state, "."));
    }
}

void expect_drives(const PlacedSettings& settings) {
    const auto refuse_memory = [](Term term, const std::vector<std::string>& folders) {
        for (const std::string& folder : folders) {
            if (store::lies_in_memory(store::nearest_present(folder))) {
                throw ConfigError(text("The folder ", folder, " of ", term,
                                       " lies in memory, which a power cut empties: with ",
                                       Term::log,
                                       " name folders on drives for logs and for state, which is "
                                       "in memory, too."));
            }
        }
    };
    refuse_memory(Term::log, settings.csd.log);
    refuse_memory(Term::path, settings.csd.path);
}

// With csd.log a device has as many logs as steps that a restart may repeat.
std::size_t logs_of(const PlacedSettings& settings, const Sizes& sizes) {
    const std::size_t logs =
        csd::logs_within(settings.csd.log_gb * 1e9, static_cast<double>(sizes.update_bytes));
    if (logs < csd::kLeastLogs) {
        throw ConfigError(
            text("csd.log_gb = ", settings.csd.log_gb, " has no room for the logs of ",
                 csd::kLeastLogs, " steps: set it to ",
                 std::ceil(static_cast<double>(csd::kLeastLogs * sizes.update_bytes) / 1e7) / 100,
                 " or more, or to 0 for ", csd::kUsualLogs, " steps."));
    }
    return logs;
}

}  // namespace

RankKeeping keeping_of_rank(const PlacedSettings& settings, const Layout& layout,
                            const EngineOptions& options, const mpi::Topology& nodes, int rank,
                            std::size_t ranks_of_host) {
    const auto ranks = static_cast<int>(nodes.group_of.size());
    const csd::Keeping keeping = plan::keeping_of(settings, lies_in_memory(settings, rank, ranks));
    if (keeping != csd::Keeping::logged) {
        const bool may_go_back =
            options.may_go_back && settings.csd.durability == config::Durability::step;
        return {.keeping = may_go_back ? csd::Keeping::twice : keeping};
    }
    expect_drives(settings);
    const shard::Ownership owners = make_ownership(settings, layout.elems, nodes);
    const Sizes sizes = sizes_of(settings, owners.of_rank(rank), rank, ranks,
                                 log_tile_bytes(settings, layout.dtype, nodes));
    expect_memory(settings, sizes.state_bytes, ranks_of_host);
    return {.keeping = keeping, .logs = logs_of(settings, sizes)};
}

csd::LoggedState largest_logged(const PlacedSettings& settings, const shard::Ownership& owners) {
    const csd::StateLayout places(largest_device(owners), settings.csd.state, false);
    return csd::logged_state(places, places.tiles() * settings.log_tile_bytes, settings.logs);
}

void keep_two_places(PlacedSettings& settings) {
    settings.spare_places = 0;
    settings.log_tile_bytes = 0;
    settings.logs = 1;
}

void set_keeping(PlacedSettings& settings, const Layout& layout, const mpi::Topology& nodes,
                 const RankKeeping& of_all) {
    keep_two_places(settings);
    if (of_all.keeping == csd::Keeping::twice) {
        return;
    }
    if (settings.csd.durability == config::Durability::step) {
        settings.log_tile_bytes = log_tile_bytes(settings, layout.dtype, nodes);
    }
    if (of_all.keeping == csd::Keeping::logged) {
        settings.logs = of_all.logs;
        settings.spare_places =
            largest_logged(settings, make_ownership(settings, layout.elems, nodes)).spare_places();
        return;
    }
    const auto ranks = static_cast<int>(nodes.group_of.size());
    settings.spare_places =
        csd::spare_places_of_device(std::ranges::max(config::devices_per_rank(settings, ranks)));
}

void resolve_places(const mpi::Communicator& world, PlacedSettings& settings, const Layout& layout,
                    const EngineOptions& options) {
    const mpi::Topology nodes = discover_nodes(world, settings);
    const std::size_t ranks_of_host = mpi::discover_nodes(world).ranks_beside(world.rank()).size();
    RankKeeping mine;
    world.together([&] {
        mine = keeping_of_rank(settings, layout, options, nodes, world.rank(), ranks_of_host);
    });
    if (!world.agree(mine.keeping != csd::Keeping::twice)) {
        mine.keeping = csd::Keeping::twice;
    }
    mine.logs = static_cast<std::size_t>(
        std::ranges::min(world.all_gather(std::array{static_cast<double>(mine.logs)})));
    set_keeping(settings, layout, nodes, mine);
}

}  // namespace nearstep::engine
