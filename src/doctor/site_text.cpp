// Words a site file of what hosts have. Called by the command doctor.
#include "doctor/site_text.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/units.hpp"
#include "config/run_settings.hpp"
#include "doctor/system.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

namespace nearstep::doctor {

namespace {

namespace fs = std::filesystem;

constexpr double kGiga = 1e9;
constexpr double kBitsOfByte = 8;

// A number of at most three digits, in GB or GB/s.
std::string giga(double value) { return formatted("%.3g", value / kGiga); }

std::string quoted(const std::string& value) {
    return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string list_of(const std::vector<std::string>& values) {
    std::string out;
    for (const std::string& value : values) {
        out += text(out.empty() ? "" : ", ", quoted(value));
    }
    return text("[", out, "]");
}

// A number at the beginning of the file; 0 if there is none.
double number_in(const fs::path& file) {
    const std::string words = read_whole(file);
    double value = 0;
    std::from_chars(words.data(), words.data() + words.size(), value);
    return value;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
    std::error_code none;
    std::vector<fs::path> entries;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
        entries.push_back(entry.path());
    }
    std::ranges::sort(entries);
    return entries;
}

// Builds the text; `missing` collects what it lacks.
class Writer {
public:
    Writer(const SiteNames& names, const std::vector<HostFacts>& hosts)
        : hosts_(hosts), names_(names), gpus_(least(&HostFacts::gpus)), ranks_(std::max(1, gpus_)) {
        find_folders();
        order_folders();
    }

    SiteText write() {
        out_ << "# What nearstep doctor --write-site found on "
             << counted(static_cast<int>(hosts_.size()), "host")
             << ". Rates are measured where nothing else is said.\n[site]\nname = "
             << quoted(names_.site) << "\n\n";
        write_hosts();
        write_devices();
        write_links();
        write_plan();
        return {out_.str(), missing_};
    }

private:
    template <typename T>
    T least(T HostFacts::*member) {
        const auto place = std::ranges::min_element(hosts_, {}, member);
        const auto most = std::ranges::max_element(hosts_, {}, member);
        if constexpr (std::is_same_v<T, int>) {
            if ((*place).*member != (*most).*member) {
                missing_.push_back(text("Hosts are alike in a site, and ", place->host, " has ",
                                        (*place).*member, ", ", most->host, " ", (*most).*member,
                                        member == &HostFacts::gpus ? " GPUs" : " cores",
                                        ": the site has the fewer."));
            }
        }
        return (*place).*member;
    }

    // Keeps the folders that are drives on all hosts.
    void find_folders() {
        for (const DriveFacts& drive : hosts_.front().drives) {
            std::vector<const DriveFacts*> drives;
            for (const HostFacts& host : hosts_) {
                const auto found =
                    std::ranges::find(host.drives, drive.folder, &DriveFacts::folder);
                if (found != host.drives.end()) {
                    drives.push_back(&*found);
                } else {
                    missing_.push_back(text("csd.path: ", host.host, " has no drive at ",
                                            drive.folder, ": it is left out."));
                }
            }
            if (drives.size() == hosts_.size()) {
                folders_.push_back(drive.folder);
                drives_.insert(drives_.end(), drives.begin(), drives.end());
            }
        }
        const auto ranks = static_cast<std::size_t>(ranks_);
        per_rank_ = std::max<std::size_t>(1, folders_.size() / ranks);
        if (folders_.size() > per_rank_ * ranks) {
            missing_.push_back(text("csd.per_rank: ", folders_.size(), " drives do not divide by ",
                                    ranks_, " ranks: the last ones are left out."));
            folders_.resize(per_rank_ * ranks);
        }
    }

    // Gives each rank the drives that are near its GPU, as far as there are some.
    void order_folders() {
        const HostFacts& first = hosts_.front();
        std::vector<std::string> left = std::exchange(folders_, {});
        const auto node_of = [&](const std::string& folder) {
            return std::ranges::find(first.drives, folder, &DriveFacts::folder)->node;
        };
        for (std::size_t rank = 0; !left.empty(); ++rank) {
            const std::optional<int> gpu =
                rank < first.gpu_nodes.size() ? first.gpu_nodes[rank] : std::nullopt;
            std::stable_partition(left.begin(), left.end(), [&](const std::string& folder) {
                return gpu && node_of(folder) == gpu;
            });
            const auto taken =
                left.begin() + std::min(std::ssize(left), static_cast<std::ptrdiff_t>(per_rank_));
            folders_.insert(folders_.end(), left.begin(), taken);
            left.erase(left.begin(), taken);
        }
    }

    // Comments that say what is near which NUMA node of the first host.
    void write_nodes() {
        const HostFacts& first = hosts_.front();
        if (first.nodes.size() < 2) {
            return;
        }
        for (const int node : first.nodes) {
            out_ << "# NUMA node " << node << ":";
            for (std::size_t gpu = 0; gpu < first.gpu_nodes.size(); ++gpu) {
                out_ << (first.gpu_nodes[gpu] == node ? text(" GPU ", gpu) : "");
            }
            for (const DriveFacts& drive : first.drives) {
                out_ << (drive.node == node ? " " + quoted(drive.folder) : "");
            }
            for (const AdapterFacts& adapter : first.adapters) {
                out_ << (adapter.node == node ? " " + quoted(adapter.name) : "");
            }
            out_ << "\n";
        }
    }

    // Without the key, ranks are bound near their devices. With it, they are bound in their order.
    void write_cores() {
        const int cores = std::max(1, least(&HostFacts::cores) / ranks_);
        const bool has_nodes = std::ranges::any_of(
            hosts_, [](const HostFacts& host) { return host.nodes.size() > 1; });
        out_ << (has_nodes ? "# cores_per_rank = " : "cores_per_rank = ") << cores
             << (has_nodes ? "  # not set: ranks are bound to the NUMA node of their devices\n"
                           : "\n");
    }

    void absent(const std::string& key, const std::string& reason) {
        out_ << "# " << key.substr(key.find('.') + 1) << " =\n";
        missing_.push_back(text(key, ": ", reason, "."));
    }

    void write_hosts() {
        write_nodes();
        out_ << "[hosts]\n";
        std::vector<std::string> names;
        std::ranges::transform(hosts_, std::back_inserter(names), &HostFacts::host);
        if (hosts_.size() > 1 || names_.has_hosts) {
            out_ << "names = " << list_of(names) << "\n";
        }
        out_ << "ranks = " << ranks_
             << "\ndevices = " << per_rank_ * static_cast<std::size_t>(ranks_) << "\n";
        write_cores();
        if (names_.remote != config::HostsSettings{}.remote) {
            out_ << "remote = " << quoted(names_.remote) << "\n";
        }
        const std::string& interface = hosts_.front().interface;
        if (hosts_.size() > 1 && !interface.empty() &&
            std::ranges::all_of(
                hosts_, [&](const HostFacts& host) { return host.interface == interface; })) {
            out_ << "interface = " << quoted(interface) << "\n";
        } else if (hosts_.size() > 1) {
            absent("hosts.interface",
                   "the hosts' fastest adapters have different names or none, "
                   "and MPI chooses: name the network between them");
        }
    }

    void write_devices() {
        out_ << "\n[csd]\ndevice = \"emulated\"  # plain drives: the host's cores run the update\n"
             << "per_rank = " << per_rank_ << "\n";
        if (folders_.empty()) {
            absent("csd.path",
                   "no drive is mounted on all hosts beside the root filesystem's: "
                   "mount some, or name folders with --set csd.path=[...]");
        } else {
            out_ << "path = " << list_of(folders_) << "\n";
        }
        const double rated = least_of_drives(&DriveFacts::rated);
        if (rated > 0) {
            out_ << "rated_tbw = " << formatted("%.4g", rated / 1e12) << "\n";
        } else {
            absent("csd.rated_tbw",
                   "the drives do not tell, or only tell root: take it from their "
                   "data sheet, so that runs say how long they last");
        }
        if (hosts_.size() > 1) {
            out_ << "\n[checkpoint]\n";
            absent("checkpoint.path", "name a folder that all hosts see");
        }
    }

    double least_of_drives(double DriveFacts::*member) const {
        const auto place = std::ranges::min_element(
            drives_, {}, [&](const DriveFacts* drive) { return drive->*member; });
        return place == drives_.end() ? 0 : (*place)->*member;
    }

    void write_links() {
        out_ << "\n[link]\nscale = 0  # nothing is delayed: the rates are for nearstep plan\n";
        const double rate = least_of_drives(&DriveFacts::rate);
        if (rate > 0) {
            out_ << "device_read_gb_s = " << giga(rate / 2)
                 << "  # beside writes\ndevice_write_gb_s = " << giga(rate / 2)
                 << "\nhost_gb_s = " << giga(rate * static_cast<double>(folders_.size()))
                 << "  # not measured: all drives at once\n";
        } else {
            const auto failed = std::ranges::find_if(
                drives_, [](const DriveFacts* drive) { return !drive->obstacle.empty(); });
            std::string reason =
                failed == drives_.end() ? "there is no drive to measure" : (*failed)->obstacle;
            reason.erase(reason.find_last_not_of('.') + 1);
            absent("link.device_read_gb_s",
                   text(reason, "; a plan computes from it how long an update reads the state"));
            absent("link.device_write_gb_s",
                   text(reason, "; a plan computes from it how long an update writes the state"));
            absent("link.host_gb_s",
                   text(reason, "; a plan needs the rate of the link that all drives share"));
        }
        const double network = least(&HostFacts::network);
        if (network > 0) {
            out_ << "network_gb_s = " << giga(network) << "  # as the adapters say\n";
        } else if (hosts_.size() > 1) {
            absent("link.network_gb_s",
                   "no adapter tells its rate, and a plan for several nodes "
                   "needs it: measure it with nearstep bench network");
        }
    }

    void write_plan() {
        const HostFacts& first = hosts_.front();
        const bool has_gpus = gpus_ > 0;
        out_ << "\n[plan]\n";
        const auto rate = [&](const char* key, double value, const char* why) {
            if (value > 0) {
                out_ << key << " = " << giga(value) << "\n";
            } else {
                absent(text("plan.", key), why);
            }
        };
        const double operations = least(&HostFacts::operations);
        if (operations > 0) {
            out_ << "gpu_tflops = " << formatted("%.4g", operations / 1e12) << "  # "
                 << (has_gpus ? text(first.gpu, ", by data sheet") : "of the CPU, which computes")
                 << "\ngpu_efficiency = " << (has_gpus ? "0.45" : "0.7") << "  # assumed\n";
        } else {
            absent("plan.gpu_tflops", text(first.gpu,
                                           " is not in the table of data sheets, and a "
                                           "plan needs its rate: take it from there"));
        }
        rate("gpu_memory_gb", least(&HostFacts::gpu_memory),
             "the GPU does not tell, and a plan must know what fits there");
        rate("gpu_memory_gb_s", least(&HostFacts::gpu_memory_rate),
             "it was not measured; a plan computes from it how long an update of state in the "
             "GPU takes");
        rate("gpu_link_gb_s", least(&HostFacts::gpu_link),
             "it was not measured; a plan computes from it how long parameters and gradients "
             "take");
        if (ranks_ > 1) {
            absent("plan.gpu_to_gpu_gb_s",
                   "not measured; plans take the link to the host instead: "
                   "take it from the data sheet, or give nearstep plan "
                   "--calibrate the lines of nearstep bench network");
        }
        const double memory = least(&HostFacts::memory);
        const double memory_rate = least(&HostFacts::memory_rate);
        const auto devices = static_cast<double>(std::max<std::size_t>(folders_.size(), 1));
        rate("host_memory_gb", memory,
             "the host does not tell, and a plan must know what fits there");
        rate("host_memory_gb_s", memory_rate,
             "it was not measured; a plan computes from it what the host adds up and copies");
        // Slots take an eighth of the memory at most, and the update reads and writes.
        rate("device_memory_gb", memory / 8 / devices,
             "the host does not tell; it limits how much of the state an update has at once");
        rate("device_memory_gb_s", memory_rate / 2 / devices,
             "it was not measured; a plan computes from it how long the arithmetic of an update "
             "takes");
        rate("device_capacity_gb", least_of_drives(&DriveFacts::free),
             "there is no drive, and a plan must know whether the state fits");
    }

    const std::vector<HostFacts>& hosts_;
    const SiteNames& names_;
    std::vector<std::string> missing_;
    int gpus_;
    int ranks_;
    std::vector<std::string> folders_;
    std::vector<const DriveFacts*> drives_;  // of all hosts, at these folders
    std::size_t per_rank_ = 1;
    std::ostringstream out_;
};

}  // namespace

SiteText site_text(const SiteNames& names, const std::vector<HostFacts>& hosts) {
    expects(!hosts.empty(), "a site has a host");
    return Writer(names, hosts).write();
}

std::vector<std::string> folders_of_mounts(const std::string& mounts) {
    std::set<std::string> seen;
    std::vector<std::string> folders;
    std::istringstream lines(mounts);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string source;
        std::string place;
        std::string kind;
        std::string options;
        words >> source >> place >> kind >> options;
        const bool is_system =
            place == "/" || place.starts_with("/boot") || place.starts_with("/efi");
        const bool is_drive = source.starts_with("/dev/") && !source.starts_with("/dev/loop");
        // A name with an escape, such as that of a space, is left to the user.
        const bool is_usable = options.starts_with("rw") && place.find('\\') == std::string::npos;
        if (is_drive && seen.insert(source).second && !is_system && is_usable) {
            folders.push_back(place + "/nearstep");
        }
    }
    std::ranges::sort(folders);
    return folders;
}

NetworkFacts find_network(const fs::path& sys) {
    NetworkFacts found;
    for (const fs::path& adapter : entries_of(sys / "class/net")) {
        const std::string name = adapter.filename().string();
        const double rate = number_in(adapter / "speed") * 1e6 / kBitsOfByte;
        const bool is_up = read_whole(adapter / "operstate").starts_with("up");
        if (name != "lo" && is_up && rate > found.rate) {
            found = {name, rate};
        }
    }
    double fabric = 0;
    for (const fs::path& adapter : entries_of(sys / "class/infiniband")) {
        for (const fs::path& port : entries_of(adapter / "ports")) {
            if (read_whole(port / "state").find("ACTIVE") != std::string::npos) {
                fabric += number_in(port / "rate") * 1e9 / kBitsOfByte;
            }
        }
    }
    found.rate = fabric > 0 ? fabric : found.rate;
    return found;
}

}  // namespace nearstep::doctor
