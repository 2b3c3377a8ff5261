// Settings of the engine: devices, formats, links and exchange. Nothing here depends on the model
// or the text. One struct per section of the TOML file.
#pragma once

#include "config/enumerations.hpp"
#include "config/group_size.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::config {

// Staging buffers of a device that reads, updates and writes at once, and one that fills a gap.
constexpr int kLeastSlots = 4;

// Where the state of a rank lies. Drives hold what the other tiers do not hold.
enum class Tier { drive, memory, gpu };

// Bytes of state in each tier, with both generations.
struct TierBytes {
    double drive = 0;
    double memory = 0;
    double gpu = 0;
};

// GB of each rank, with both generations of the state; none: "auto", which the start of a run
// replaces by what is free.
struct Tiers {
    std::optional<double> gpu = 0;
    std::optional<double> memory = 0;  // in a folder in memory
    // The most that "auto" takes, if the planner was asked.
    double most_gpu = std::numeric_limits<double>::infinity();
    double most_memory = std::numeric_limits<double>::infinity();

    bool operator==(const Tiers&) const = default;
};

// The share of free memory that "auto" takes for a tier.
constexpr double kTierShareOfFree = 0.5;

// Whether the tier holds any state, or may.
inline bool is_used(const std::optional<double>& tier) { return !tier || *tier > 0; }

struct CsdSettings {
    DeviceKind device = DeviceKind::emulated;
    std::vector<int> per_rank = {1};  // one entry for all ranks, or one per rank
    std::vector<std::string> path = {
        "runs/state"};  // folders; device i of a rank uses path[i % size]
    // Relative, one for all or one per drive of all ranks. Empty: "auto", measured at start.
    std::vector<double> speed = {1.0};
    int storage_ranks = 0;  // the last ranks, which hold devices and compute nothing
    Tiers tiers = {};
    std::size_t subgroup_tiles = 16;
    int slots = 0;  // 0: kLeastSlots, and more where memory is free
    arith::StateFormat state = arith::StateFormat::fp32;
    Durability durability = Durability::step;
    std::vector<std::string> log = {};  // folders; device i of a rank uses log[i % size]
    double log_gb = 0;                  // of a rank; 0: what 16 steps take
    IoKind io = IoKind::automatic;
    // The keys below are for device "xrt" only.
    std::vector<std::string> cards = {};  // one per folder of `path`; empty: found through sysfs
    std::string xclbin = "";              // file with the kernels
    std::vector<int> host_engine = {};    // devices of all ranks whose state the host updates
    double update_mparam_s = 0;           // 0: the engine's full speed
    double rated_tbw = 0;                 // 0: not known

    // The slots of a device, beside those that it makes where memory is free.
    int least_slots() const { return slots > 0 ? slots : kLeastSlots; }
};

// Rates of one device or one node; 0 means not limited.
struct LinkSettings {
    double device_read_gb_s = 0;
    double device_write_gb_s = 0;
    double host_gb_s = 0;
    double host_total_gb_s = 0;
    double network_gb_s = 0;
    double scale = 1;  // of all rates; 0: they are only for plans, and whole there
    GpuLinkUse gpu_traffic = GpuLinkUse::apart;

    double factor() const { return scale > 0 ? scale : 1; }
    bool are_shaped() const {
        return scale > 0 && (device_read_gb_s > 0 || device_write_gb_s > 0 || host_gb_s > 0 ||
                             host_total_gb_s > 0 || network_gb_s > 0);
    }
};

struct CompressSettings {
    PayloadCodec codec = PayloadCodec::automatic;  // parse() chooses
    double keep = 0.01;
    arith::Rounding rounding = arith::Rounding::nearest;
    bool error_feedback = false;
    std::int64_t warmup_steps = 0;
};

struct GatherSettings {
    ParameterCodec codec = ParameterCodec::dense;
};

struct CheckpointSettings {
    std::string path;        // empty: "checkpoints" in the first csd.path
    std::int64_t every = 0;  // steps; 0: only at the end, and where stop_at stops
};

struct ExchangeSettings {
    Densify densify = Densify::automatic;
    GpuPath transport = GpuPath::automatic;
    int ranks_per_node = 0;  // 0: ranks that share memory
    int timeout_s = 120;

    // Longest run of a card for one subgroup. A card that hangs is found before the ranks that
    // wait for it give up.
    std::chrono::milliseconds card_timeout() const {
        return std::chrono::milliseconds(std::chrono::seconds(timeout_s)) / 4;
    }
};

struct EngineSettings {
    Mode mode = Mode::su_o;
    CsdSettings csd;
    LinkSettings link;
    CompressSettings compress;
    GatherSettings gather;
    Placement placement;
    CheckpointSettings checkpoint;
    ExchangeSettings exchange;
    std::string site = "localhost";
};

// The folder that checkpoints go to.
std::string checkpoint_folder(const EngineSettings& settings);

// The folder for the state that csd.tiers.memory keeps in memory. Its name depends on the first
// csd.path alone, so that a restart finds it.
std::string memory_folder(const EngineSettings& settings);

// The ranks that compute: the first of `ranks`, without csd.storage_ranks. Throws ConfigError if
// there is none.
int computing_ranks(const EngineSettings& settings, int ranks);

// Drives of each rank, `ranks` entries, from csd.per_rank. If there are storage ranks, one number
// is theirs and other ranks have none. Throws ConfigError.
std::vector<int> drives_per_rank(const EngineSettings& settings, int ranks);

// The devices of each rank: its drives; if it has any, one in memory with csd.tiers.memory; and one
// in GPU memory with csd.tiers.gpu, if it computes.
std::vector<std::vector<Tier>> tiers_per_rank(const EngineSettings& settings, int ranks);

// Returns the number of devices of each rank.
std::vector<int> devices_per_rank(const EngineSettings& settings, int ranks);

// Speed of each device of all ranks, from csd.speed. Those that are measured are 1, and so is that
// of a device in another tier. Throws ConfigError.
std::vector<double> device_speeds(const EngineSettings& settings, int ranks);

// Folders of csd.path that this host's ranks may use: those that `granted` lists, see
// places_of_devices(), or all. Throws ConfigError if it is no list.
int folders_of_host(const EngineSettings& settings, const std::string& granted);

// Indices into csd.path for the `count` devices of one rank; lower ranks of the host have `before`
// devices. `granted` lists the indices that a batch system gave the job on this host, as in "2,3",
// or "none"; empty: all, and devices share folders if there are too few. A rank without devices
// still gets one index, for its manifest. Throws ConfigError if too few or unknown indices are
// granted.
std::vector<int> places_of_devices(const EngineSettings& settings, int before, int count,
                                   const std::string& granted);

}  // namespace nearstep::config
