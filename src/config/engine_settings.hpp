// Settings of the engine: devices, formats, links and exchange. Nothing here depends on the model
// or the text. One struct per section of the TOML file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::config {

// Where the update happens and what crosses the host link; the paper's BASE, SU, SU+O and SU+O+C.
enum class Mode { base, su, su_o, su_o_c };

// "base", "su", "su+o", "su+o+c".
const char* name_of(Mode mode);
// Throws ConfigError that lists the four names.
Mode parse_mode(const std::string& name);

// Staging buffers of a device that reads, updates and writes at once, and one that fills a gap.
constexpr int kLeastSlots = 4;

struct CsdSettings {
    std::string device = "emulated";
    std::vector<int> per_rank = {1};  // one entry for all ranks, or one per rank
    std::vector<std::string> path = {
        "runs/state"};  // folders; device i of a rank uses path[i % size]
    // Relative, one for all or one per drive of all ranks. Empty: "auto", measured at start.
    std::vector<double> speed = {1.0};
    double memory_gb = 0;  // of the state, per rank, in a folder in memory
    std::size_t subgroup_tiles = 16;
    int slots = 0;  // 0: kLeastSlots, and more where memory is free
    std::string state = "fp32";
    std::string durability = "step";
    std::string io = "auto";
    std::string where = "auto";
    // For device "xrt" only.
    std::vector<std::string> cards = {};  // one per folder of `path`; empty: found through sysfs
    std::string xclbin = "";              // file with the kernels
    int run_timeout_s = 30;
    std::vector<int> host_engine = {};  // devices of all ranks whose state the host updates
    double update_mparam_s = 0;         // 0: the engine's full speed
    double rated_tbw = 0;               // 0: not known
};

// Rates of one device or one node; 0 means not limited.
struct LinkSettings {
    bool shape = true;  // false: the rates are only for plans
    double device_read_gb_s = 0;
    double device_write_gb_s = 0;
    double host_gb_s = 0;
    double host_total_gb_s = 0;
    double network_gb_s = 0;
    double scale = 1;
    std::string gpu_traffic = "apart";

    bool are_shaped() const {
        return shape && (device_read_gb_s > 0 || device_write_gb_s > 0 || host_gb_s > 0 ||
                         host_total_gb_s > 0 || network_gb_s > 0);
    }
};

struct CompressSettings {
    std::string codec = "auto";
    double keep = 0.01;
    std::string rounding = "nearest";
    std::string where = "auto";
    bool error_feedback = false;
    std::int64_t warmup_steps = 0;
};

struct GatherSettings {
    std::string codec = "dense";
};

struct PlacementSettings {
    std::string parameters = "auto";  // one of the words of Sharding, or "auto"
    std::string gradients = "auto";
    std::string optimizer = "auto";
    // Not a key: the names of those that were "auto", such as "parameters".
    std::vector<std::string> automatic = {};
};

struct CheckpointSettings {
    std::string path;        // empty: "checkpoints" in the first csd.path
    std::int64_t every = 0;  // steps; 0: only at the end, and where stop_at stops
};

struct ExchangeSettings {
    std::string scatter = "hierarchical";  // or "flat"
    std::string densify = "auto";          // "auto", "always" or "never"
    std::string transport = "auto";        // "auto", "mpi" or "nccl"
    int ranks_per_node = 0;                // 0: ranks that share memory
    int timeout_s = 120;
};

struct EngineSettings {
    Mode mode = Mode::su_o;
    CsdSettings csd;
    LinkSettings link;
    CompressSettings compress;
    GatherSettings gather;
    PlacementSettings placement;
    CheckpointSettings checkpoint;
    ExchangeSettings exchange;
    std::string site = "localhost";
};

// The folder that checkpoints go to.
std::string checkpoint_folder(const EngineSettings& settings);

// The folder for the state that csd.memory_gb keeps in memory. Its name depends on the first
// csd.path alone, so that a restart finds it.
std::string memory_folder(const EngineSettings& settings);

// Drives of each rank, `ranks` entries, from csd.per_rank. Throws ConfigError.
std::vector<int> drives_per_rank(const EngineSettings& settings, int ranks);

// Devices of each rank: its drives and, if it has any, one in memory with csd.memory_gb. That is
// its last.
std::vector<int> devices_per_rank(const EngineSettings& settings, int ranks);

// Speed of each device of all ranks, from csd.speed. Those that are measured are 1, and so is that
// of a device in memory. Throws ConfigError.
std::vector<double> device_speeds(const EngineSettings& settings, int ranks);

// Folders of csd.path that this host's ranks may use: those that `granted` lists, see
// places_of_devices(), or all. Throws ConfigError if it is no list.
int folders_of_host(const EngineSettings& settings, const std::string& granted);

// Indices into csd.path for the `count` devices of one rank; lower ranks of the host have `before`
// devices. `granted` lists the indices that a batch system gave the job on this host, as in "2,3";
// empty: all, and devices share folders if there are too few. A rank without devices still gets one
// index, for its manifest. Throws ConfigError if too few or unknown indices are granted.
std::vector<int> places_of_devices(const EngineSettings& settings, int before, int count,
                                   const std::string& granted);

}  // namespace nearstep::config
