// Times updates on a rank's devices. Called by device_speeds.cpp.
#include "engine/placement/speed_trial.hpp"

#include "base/error.hpp"
#include "base/executor.hpp"
#include "base/folder_tree.hpp"
#include "base/random.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/site_links.hpp"
#include "engine/placement/tier_shares.hpp"
#include "memory/buffer.hpp"
#include "mpi/topology.hpp"
#include "store/storage_folder.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace nearstep::engine {

namespace {

using Clock = std::chrono::steady_clock;
using shard::kTileElems;

constexpr std::chrono::duration<double> kLeastSeconds(0.7);
constexpr std::size_t kSubgroups = 8;  // of each device
constexpr std::size_t kMostTiles = 8;  // of a subgroup

// Names of files that are about to be made. Removes them at the end of the scope; an open file
// stays usable until it is closed.
class TemporaryNames {
public:
    explicit TemporaryNames(std::vector<std::string> names) {
        for (const std::string& name : names) {
            if (is_present(name)) {
                throw ConfigError(text("The file ", name,
                                       " is in the way of measuring the device: remove it, or set "
                                       "csd.speed to numbers."));
            }
        }
        names_ = std::move(names);
    }
    TemporaryNames(const TemporaryNames&) = delete;
    TemporaryNames& operator=(const TemporaryNames&) = delete;
    ~TemporaryNames() {
        for (const std::string& name : names_) {
            ::unlink(name.c_str());
        }
    }

    const std::vector<std::string>& names() const { return names_; }

private:
    std::vector<std::string> names_;
};

// Folders that are about to be made, each before those it lies in. Removes them at the end of the
// scope.
class TemporaryFolders {
public:
    explicit TemporaryFolders(const std::vector<std::string>& folders) : folders_(folders) {}
    TemporaryFolders(const TemporaryFolders&) = delete;
    TemporaryFolders& operator=(const TemporaryFolders&) = delete;
    ~TemporaryFolders() { store::remove_empty_folders(folders_); }

private:
    const std::vector<std::string>& folders_;
};

// Names a trial file beside each state file.
std::vector<std::string> names_beside(const std::vector<std::string>& states) {
    std::vector<std::string> names;
    names.reserve(states.size());
    for (const std::string& state : states) {
        const std::string name = state.substr(state.rfind('/') + 1);
        names.push_back(
            text(store::folder_of(state), "/speed-", ::getpid(), ".", name, ".temporary"));
    }
    return names;
}

std::vector<float> random_tile() {
    std::vector<float> values(kTileElems);
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(random_uniform(1, 0, i));
    }
    return values;
}

// The values do not change the speed, but zeros might, on drives that compress.
void write_start_state(csd::Device& device, const std::vector<float>& tile) {
    for (std::size_t subgroup = 0; subgroup < device.subgroups().size(); ++subgroup) {
        std::vector<float> master;
        for (std::size_t i = 0; i < device.subgroups()[subgroup].tiles.size(); ++i) {
            master.insert(master.end(), tile.begin(), tile.end());
        }
        std::vector<float> moment1 = master;
        std::vector<float> moment2 = master;
        device.write_state(subgroup, 0, {master, moment1, moment2});
    }
}

// Gradients of all tiles, used by all updates.
void put_gradients(csd::Device& device, const GradientRoute& route,
                   const std::vector<float>& tile) {
    const codec::Codec& codec = route.of_step(0).to_devices();
    memory::Buffer payload(codec.payload_bytes());
    codec.encode(tile, payload.span());
    const std::vector<std::span<const std::byte>> payloads(
        static_cast<std::size_t>(route.sources()), payload.span());
    for (const shard::Subgroup& subgroup : device.subgroups()) {
        for (std::size_t at = subgroup.tiles.begin; at < subgroup.tiles.end; ++at) {
            device.put_gradient(at, payloads, tile);
        }
    }
    device.finish_gradients();
}

csd::UpdateScalars scalars() {
    csd::UpdateScalars values;
    values.step_size = 1e-3F;
    return values;
}

// One device that updates a small state again and again.
class Trial {
public:
    Trial(csd::Device& device, csd::HandlerKind handler, std::span<std::byte> destination,
          bool is_durable)
        : device_(&device),
          handler_(std::make_unique<csd::TransferHandler>(handler, device)),
          destination_(destination),
          is_durable_(is_durable) {}

    // The first update writes parts of the file that have never been written, which takes longer.
    void prepare(const GradientRoute& route, const std::vector<float>& tile) {
        device_->reserve();
        write_start_state(*device_, tile);
        put_gradients(*device_, route, tile);
        update();
    }

    // Goes on while other devices still measure, so that all share the host all the time.
    void measure(std::atomic<int>& measuring) {
        const auto begin = Clock::now();
        std::size_t updates = 0;
        bool is_long_enough = false;
        while (!is_long_enough || measuring > 0) {
            update();
            ++updates;
            if (!is_long_enough && Clock::now() - begin >= kLeastSeconds) {
                is_long_enough = true;
                --measuring;
            }
        }
        const std::chrono::duration<double> seconds = Clock::now() - begin;
        tiles_per_s_ = static_cast<double>(updates * tiles()) / seconds.count();
    }

    double tiles_per_s() const { return tiles_per_s_; }

private:
    std::size_t tiles() const {
        std::size_t tiles = 0;
        for (const shard::Subgroup& subgroup : device_->subgroups()) {
            tiles += subgroup.tiles.size();
        }
        return tiles;
    }

    void update() {
        handler_->start(scalars(), generation_, destination_);
        handler_->finish();
        if (is_durable_) {
            device_->flush().wait();
        }
        ++generation_;
    }

    csd::Device* device_;
    std::unique_ptr<csd::TransferHandler> handler_;
    std::span<std::byte> destination_;
    bool is_durable_;
    std::int64_t generation_ = 0;
    double tiles_per_s_ = 0;
};

// The run's settings, with equal shares of a state that is a little smaller.
PlacedSettings settings_of_trial(const PlacedSettings& settings, std::size_t tiles_of_device) {
    PlacedSettings trial = settings;
    trial.csd.speed = {1.0};
    trial.speeds.clear();
    trial.csd.tiers = {};
    trial.csd.subgroup_tiles = std::clamp<std::size_t>(
        tiles_of_device / kSubgroups, 1, std::min(kMostTiles, settings.csd.subgroup_tiles));
    trial.gather.codec = config::ParameterCodec::dense;
    return trial;
}

std::size_t most_devices_of_a_copy(const config::EngineSettings& settings,
                                   const mpi::Topology& nodes) {
    const std::vector<int> devices =
        config::devices_per_rank(settings, static_cast<int>(nodes.group_of.size()));
    int most = 0;
    for (const std::vector<int>& ranks : copies_of(settings, nodes).ranks_of) {
        int of_copy = 0;
        for (const int one : ranks) {
            of_copy += devices[static_cast<std::size_t>(one)];
        }
        most = std::max(most, of_copy);
    }
    return static_cast<std::size_t>(std::max(most, 1));
}

// The settings that all trials share.
struct TrialRun {
    PlacedSettings settings = {};
    mpi::Topology nodes;
    Dtype dtype;
    std::size_t tiles = 0;
    std::vector<float> tile = random_tile();
};

int beside(const mpi::Topology& nodes, int rank) {
    return static_cast<int>(nodes.ranks_beside(rank).size());
}

// Tiles per second of this rank's devices, while all work at once. With `keeps`, their slots keep
// state as in training; 0 of a device whose slots do not.
std::vector<double> run_trials(const mpi::Communicator& world, const TrialRun& run, bool keeps) {
    const shard::Ownership owners = make_ownership(run.settings, run.tiles * kTileElems, run.nodes);
    const GradientRoute route(run.settings, run.dtype, run.nodes);
    const shaping::Clock clock;
    const std::unique_ptr<shaping::NodeLinks> links = make_links(world, run.settings, clock);
    trace::Traffic traffic;
    Executor executor(pool_threads(), Executor::Priority::background);
    memory::Buffer destination =
        memory::Buffer::untouched(run.tiles * kTileElems * size_bytes(run.dtype));
    std::vector<std::unique_ptr<csd::Device>> devices;
    std::vector<Trial> trials;
    const std::vector<std::string> states = state_files(run.settings, world.rank(), world.size());
    std::vector<std::string> folders;
    world.together([&] { folders = store::missing_folders(states); });
    std::optional<TemporaryFolders> at_end(folders);
    std::optional<Executor> at_once;
    world.together([&] {
        {
            const TemporaryNames files(names_beside(states));
            devices = make_devices(run.settings, world, owners, route,
                                   {.dtype = run.dtype,
                                    .links = links.get(),
                                    .executor = &executor,
                                    .ranks_beside = keeps ? beside(run.nodes, world.rank()) : 0,
                                    .files = files.names()},
                                   traffic);
            for (const auto& device : devices) {
                device->claim();
                trials.emplace_back(*device, handler_kind(run.settings.mode), destination.span(),
                                    run.settings.csd.durability == config::Durability::step);
            }
        }
        at_once.emplace(static_cast<int>(trials.size()));
        at_once->share(trials.size(),
                       [&](std::size_t i, int) { trials[i].prepare(route, run.tile); });
    });
    // Ranks may share a folder, and each flushes it until it is prepared.
    at_end.reset();
    world.together([&] {
        std::atomic<int> measuring(static_cast<int>(trials.size()));
        at_once->share(trials.size(), [&](std::size_t i, int) {
            try {
                trials[i].measure(measuring);
            } catch (...) {
                measuring = 0;  // the others need not wait
                throw;
            }
        });
    });
    std::vector<double> speeds;
    for (std::size_t i = 0; i < trials.size(); ++i) {
        const bool counts = !keeps || devices[i]->kept_slots() > 0;
        speeds.push_back(counts ? trials[i].tiles_per_s() : 0);
    }
    return speeds;
}

}  // namespace

std::vector<double> speeds_of_trials(const std::function<std::vector<double>()>& trial) {
    constexpr double kDoubtful = 0.25;
    std::vector<double> speeds = trial();
    const double most = speeds.empty() ? 0 : std::ranges::max(speeds);
    if (std::ranges::any_of(speeds,
                            [&](double speed) { return speed > 0 && speed < kDoubtful * most; })) {
        const std::vector<double> again = trial();
        std::ranges::transform(speeds, again, speeds.begin(),
                               [](double one, double other) { return std::max(one, other); });
    }
    return speeds;
}

std::vector<TrialSpeeds> measure_devices(const mpi::Communicator& world,
                                         const PlacedSettings& placed, const Layout& layout) {
    PlacedSettings settings = placed;
    settings.csd.tiers = {};
    TrialRun run{.nodes = discover_nodes(world, settings), .dtype = layout.dtype};
    const std::size_t most = most_devices_of_a_copy(settings, run.nodes);
    run.settings = settings_of_trial(settings, shard::tiles_of(layout.elems) / most);
    run.tiles = most * kSubgroups * run.settings.csd.subgroup_tiles;
    const std::vector<int> counts = config::devices_per_rank(settings, world.size());
    const shard::DeviceMap devices(counts);
    const auto all = static_cast<std::size_t>(devices.devices());
    const auto first = static_cast<std::size_t>(devices.first(world.rank()));
    std::vector<double> ahead(all, 0.0);
    world.together([&] {
        std::size_t place = first;
        for (const ReadAheadBytes& bytes :
             read_ahead_bytes(settings, tiers_of(settings, world.rank(), world.size()),
                              state_files(settings, world.rank(), world.size()),
                              {.ranks_beside = beside(run.nodes, world.rank())})) {
            ahead[place++] = static_cast<double>(bytes.host);
        }
    });
    world.sum(std::span(ahead));
    const auto measured = [&](bool keeps) {
        return speeds_of_trials([&] {
            std::vector<double> speeds(all, 0.0);
            std::ranges::copy(run_trials(world, run, keeps),
                              speeds.begin() + static_cast<std::ptrdiff_t>(first));
            world.sum(std::span(speeds));
            return speeds;
        });
    };
    const std::vector<double> of_read = measured(false);
    const bool may_keep = std::ranges::any_of(ahead, [](double bytes) { return bytes > 0; });
    const std::vector<double> of_kept = may_keep ? measured(true) : std::vector<double>(all, 0.0);
    std::vector<TrialSpeeds> speeds;
    for (std::size_t i = 0; i < all; ++i) {
        const bool keeps = of_kept[i] > 0;
        speeds.push_back({.of_read = of_read[i],
                          .of_kept = keeps ? of_kept[i] : of_read[i],
                          .read_ahead_bytes = keeps ? static_cast<std::size_t>(ahead[i]) : 0});
    }
    return speeds;
}

}  // namespace nearstep::engine
