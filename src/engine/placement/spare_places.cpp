// Decides how many places state has. Called by find_start().
#include "engine/placement/spare_places.hpp"

#include "csd/payload_memory.hpp"
#include "engine/placement/devices.hpp"
#include "engine/route/gradient_route.hpp"
#include "plan/link_rates.hpp"
#include "store/storage_folder.hpp"

#include <algorithm>

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

}  // namespace

void keep_two_places(PlacedSettings& settings) {
    settings.spare_places = 0;
    settings.log_tile_bytes = 0;
}

void settle_places(const mpi::Communicator& world, PlacedSettings& settings, const Layout& layout,
                   const EngineOptions& options) {
    keep_two_places(settings);
    const bool needs_two = settings.mode == config::Mode::base ||
                           settings.csd.device != config::DeviceKind::emulated ||
                           plan::rates_of(settings.link).are_shaped() ||
                           options.parameters == ParameterHome::state || options.may_go_back;
    bool can_share = false;
    world.together([&] { can_share = !needs_two && lies_in_memory(world, settings); });
    if (!world.agree(can_share)) {
        return;
    }
    const int most = std::ranges::max(config::devices_per_rank(settings, world.size()));
    settings.spare_places =
        static_cast<std::size_t>(std::max(kLeastOfDevice, kSparePlaces / std::max(most, 1)));
    if (settings.csd.durability == config::Durability::step) {
        const GradientRoute route(settings, layout.dtype, discover_nodes(world, settings));
        settings.log_tile_bytes = csd::PayloadMemory::tile_bytes(
            route.most_handed_bytes(), static_cast<std::size_t>(route.sources()));
    }
}

}  // namespace nearstep::engine
