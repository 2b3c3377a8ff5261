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
#include "plan/link_rates.hpp"
#include "store/storage_folder.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace nearstep::engine {

namespace {

// A rank has this many subgroups in work at once. With compact state and 16 tiles each, the default
// of csd.subgroup_tiles, 64 places take 270 MB.
constexpr int kSparePlaces = 64;
constexpr int kLeastOfDevice = 8;

// Whether all of this rank's state that is not in GPU memory lies in host memory.
bool lies_in_memory(const mpi::Communicator& world, const PlacedSettings& settings) {
    const std::vector<std::string> files = state_files(settings, world.rank(), world.size(), 0);
    const std::vector<config::Tier> tiers = tiers_of(settings, world.rank(), world.size());
    for (std::size_t device = 0; device < files.size(); ++device) {
        const std::string folder = store::nearest_present(store::folder_of(files[device]));
        if (tiers[device] != config::Tier::gpu && !store::lies_in_memory(folder)) {
            return false;
        }
    }
    return true;
}

// The bytes of this rank's state, and of one update in its logs. The most subgroups of any device.
struct Sizes {
    std::size_t state_bytes = 0;
    std::size_t update_bytes = 0;
    std::size_t most_subgroups = 0;
};

Sizes sizes_of(const mpi::Communicator& world, const PlacedSettings& settings,
               const Layout& layout) {
    const shard::Ownership owners =
        make_ownership(settings, layout.elems, discover_nodes(world, settings));
    Sizes sizes{.most_subgroups = most_subgroups(owners)};
    const shard::Replica& own = owners.of_rank(world.rank());
    const std::vector<std::string> files = state_files(settings, world.rank(), world.size(), 0);
    for (const csd::StateVolumeSettings& volume :
         state_volumes(settings, world.rank(), own, files)) {
        const csd::StateLayout places(volume.subgroups, volume.state, false);
        sizes.state_bytes += places.subgroups() * places.most_extent_bytes();
        sizes.update_bytes +=
            csd::GradientLog::file_bytes(places.tiles() * settings.log_tile_bytes);
    }
    return sizes;
}

void expect_memory(const mpi::Communicator& world, const PlacedSettings& settings,
                   std::size_t state_bytes) {
    const std::size_t ranks = mpi::discover_nodes(world).ranks_beside(world.rank()).size();
    const std::size_t available = machine_memory().available_bytes / ranks;
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
void settle_logs(const mpi::Communicator& world, PlacedSettings& settings, const Layout& layout) {
    constexpr std::size_t kLogs = 16;
    constexpr std::size_t kLeastLogs = 2;
    Sizes sizes;
    std::size_t logs = kLogs;
    world.together([&] {
        expect_drives(settings);
        sizes = sizes_of(world, settings, layout);
        expect_memory(world, settings, sizes.state_bytes);
        if (settings.csd.log_gb > 0 && sizes.update_bytes > 0) {
            logs = static_cast<std::size_t>(
                std::min(settings.csd.log_gb * 1e9 / static_cast<double>(sizes.update_bytes),
                         static_cast<double>(kMostLogs)));
        }
        if (logs < kLeastLogs) {
            throw ConfigError(
                text("csd.log_gb = ", settings.csd.log_gb, " has no room for the logs of ",
                     kLeastLogs, " steps: set it to ",
                     std::ceil(static_cast<double>(kLeastLogs * sizes.update_bytes) / 1e7) / 100,
                     " or more, or to 0 for ", kLogs, " steps."));
        }
    });
    settings.logs = static_cast<std::size_t>(
        std::ranges::min(world.all_gather(std::array{static_cast<double>(logs)})));
    settings.spare_places = (sizes.most_subgroups + settings.logs - 1) / settings.logs;
}

}  // namespace

void keep_two_places(PlacedSettings& settings) {
    settings.spare_places = 0;
    settings.log_tile_bytes = 0;
    settings.logs = 1;
}

void settle_places(const mpi::Communicator& world, PlacedSettings& settings, const Layout& layout,
                   const EngineOptions& options) {
    keep_two_places(settings);
    const auto log_tile_bytes = [&] {
        const GradientRoute route(settings, layout.dtype, discover_nodes(world, settings));
        return csd::PayloadMemory::tile_bytes(route.most_handed_bytes(),
                                              static_cast<std::size_t>(route.sources()));
    };
    if (!settings.csd.log.empty()) {
        settings.log_tile_bytes = log_tile_bytes();
        settle_logs(world, settings, layout);
        return;
    }
    const bool needs_two = settings.mode == config::Mode::base ||
                           settings.csd.device != config::DeviceKind::emulated ||
                           plan::rates_of(settings.link).are_shaped() || options.may_go_back;
    bool can_share = false;
    world.together([&] { can_share = !needs_two && lies_in_memory(world, settings); });
    if (!world.agree(can_share)) {
        return;
    }
    const int most = std::ranges::max(config::devices_per_rank(settings, world.size()));
    settings.spare_places =
        static_cast<std::size_t>(std::max(kLeastOfDevice, kSparePlaces / std::max(most, 1)));
    if (settings.csd.durability == config::Durability::step) {
        settings.log_tile_bytes = log_tile_bytes();
    }
}

}  // namespace nearstep::engine
