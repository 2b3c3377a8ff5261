// What the engine is set to: devices, formats, links and ways of exchange. Nothing of a model or of
// text. One struct per section of the TOML file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::config {

// Where the update happens and what crosses the host link: the paper's BASE, SU, SU+O, SU+O+C.
enum class Mode { base, su, su_o, su_o_c };

// "base", "su", "su+o", "su+o+c".
const char* name_of(Mode mode);
// Throws ConfigError naming the four.
Mode parse_mode(const std::string& name);

struct CsdSettings {
    std::string device = "emulated";
    std::vector<int> per_rank = {1};  // one entry for all ranks, or one per rank
    std::vector<std::string> path = {
        "runs/state"};  // folders; device i of a rank uses path[i % size]
    // Not a key: the places in `path` of this rank's devices, see hosts.hpp; empty: 0, 1, ...
    std::vector<int> places = {};
    std::vector<double> speed = {1.0};  // relative, one for all or one per device of all ranks
    std::size_t subgroup_tiles = 16;
    int slots = 4;
    std::string state = "fp32";
    std::string durability = "step";
    std::string io = "auto";
    // Of device "xrt".
    std::vector<std::string> cards = {};  // beside each folder of `path`; empty: found from sysfs
    std::string xclbin = "";              // file with the kernels
    int run_timeout_s = 30;
    std::vector<int> host_engine = {};  // devices of all ranks whose state the host updates
    double update_mparam_s = 0;         // 0: as fast as the engine can
    double rated_tbw = 0;               // 0: not known
};

// Of one device, or of one node; 0: not shaped.
struct LinkSettings {
    bool shape = true;  // false: the rates are for a plan alone
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
    std::string parameters = "auto";  // see placement.hpp
    std::string gradients = "auto";
    std::string optimizer = "auto";
    // Not a key: those that were "auto", as "parameters".
    std::vector<std::string> automatic = {};
};

struct CheckpointSettings {
    std::string path;        // empty: "checkpoints" in the first csd.path
    std::int64_t every = 0;  // steps; 0: at the end, and where stop_at stops
};

struct ExchangeSettings {
    std::string scatter = "hierarchical";  // or "flat"
    std::string densify = "auto";          // "auto", "always" or "never"
    std::string transport = "auto";        // "auto", "mpi" or "nccl"
    int ranks_per_node = 0;                // 0: those that share memory
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

// Devices of each rank, `ranks` entries, from csd.per_rank. Throws ConfigError.
std::vector<int> devices_per_rank(const EngineSettings& settings, int ranks);

// Speed of each device of all ranks, from csd.speed. Throws ConfigError.
std::vector<double> device_speeds(const EngineSettings& settings, int ranks);

// The positions in csd.path of `count` devices of one rank; those of the host's lower ranks are
// `before`. `granted`: positions that a batch system gave the job on this host, as in "2,3"; empty:
// all, and devices share folders if there are more devices than folders. A rank without a device
// has one position as well, for its manifest. Throws ConfigError if the granted ones do not do.
std::vector<int> places_of_devices(const EngineSettings& settings, int before, int count,
                                   const std::string& granted);

}  // namespace nearstep::config
