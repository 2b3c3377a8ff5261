// Reads /proc and cgroups. Used to choose thread counts, and to refuse runs that lack memory.
#include "base/machine.hpp"

#include "base/units.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <sstream>
#include <system_error>

namespace nearstep {

namespace {

namespace fs = std::filesystem;

enum class Version { one, two };

// A hierarchy of cgroups, and the folder of this process's cgroup in it.
struct Hierarchy {
    Version version = Version::two;
    fs::path top;
    fs::path own;
};

bool lists(const std::string& names, const std::string& wanted) {
    return ("," + names + ",").find("," + wanted + ",") != std::string::npos;
}

// Mount points are written with octal escapes: "\040" is a space.
std::string unescaped(const std::string& text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        int code = 0;
        const char* const digits = text.data() + i + 1;
        if (text[i] == '\\' && i + 3 < text.size() &&
            std::from_chars(digits, digits + 3, code, 8).ptr == digits + 3) {
            out += static_cast<char>(code);
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

// The path of this process's cgroup; empty if it has none. /proc/self/cgroup has lines such as
// "4:memory:/a/b", and "0::/a/b" for version 2.
std::string cgroup_path(const std::string& root, const std::string& controller, Version version) {
    std::ifstream table(root + "/proc/self/cgroup");
    for (std::string line; std::getline(table, line);) {
        const std::size_t first = line.find(':');
        const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) {
            continue;
        }
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (version == Version::two ? controllers.empty() : lists(controllers, controller)) {
            return line.substr(second + 1);
        }
    }
    return "";
}

// A container may see its cgroup as the mount's root while /proc names the path on the host, or
// may not see it at all: then the mount's root is the nearest that can be read.
fs::path own_folder(const fs::path& top, const fs::path& mount_root, const std::string& path) {
    const fs::path inside = fs::path(path).lexically_relative(mount_root);
    fs::path own = top;
    for (const fs::path& part : inside) {
        if (part == "..") {
            return top;
        }
        std::error_code ignored;
        if (part == "." || part.empty()) {
            continue;
        }
        if (!fs::is_directory(own / part, ignored)) {
            break;
        }
        own /= part;
    }
    return own;
}

// The hierarchies that may limit `controller`. A line of /proc/self/mountinfo:
// "35 31 0:32 ROOT MOUNT-POINT OPTIONS ... - TYPE SOURCE OPTIONS".
std::vector<Hierarchy> hierarchies_of(const std::string& root, const std::string& controller) {
    std::vector<Hierarchy> found;
    std::ifstream table(root + "/proc/self/mountinfo");
    for (std::string line; std::getline(table, line);) {
        const std::size_t dash = line.find(" - ");
        if (dash == std::string::npos) {
            continue;
        }
        std::istringstream front(line.substr(0, dash));
        std::istringstream back(line.substr(dash + 3));
        const std::vector<std::string> fields{std::istream_iterator<std::string>(front), {}};
        std::string type;
        std::string source;
        std::string options;
        back >> type >> source >> options;
        const bool is_two = type == "cgroup2";
        if (fields.size() < 5 || !(is_two || (type == "cgroup" && lists(options, controller)))) {
            continue;
        }
        const Version version = is_two ? Version::two : Version::one;
        const fs::path top = root + unescaped(fields[4]);
        found.push_back(
            {.version = version,
             .top = top,
             .own = own_folder(top, unescaped(fields[3]), cgroup_path(root, controller, version))});
    }
    return found;
}

// Calls `look` for this process's cgroup and its ancestors.
void visit_cgroups(const std::string& root, const std::string& controller,
                   const std::function<void(const fs::path& folder, Version version)>& look) {
    for (const Hierarchy& hierarchy : hierarchies_of(root, controller)) {
        for (fs::path folder = hierarchy.own;; folder = folder.parent_path()) {
            look(folder, hierarchy.version);
            if (folder == hierarchy.top || folder == folder.parent_path()) {
                break;
            }
        }
    }
}

// The words of a small file; none if it cannot be read.
std::vector<std::string> words_of(const fs::path& path) {
    std::ifstream file(path);
    return {std::istream_iterator<std::string>(file), {}};
}

// "max" and -1 are no limit, nor is what is not a number.
std::optional<std::int64_t> number_in(const std::string& word) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    return error == std::errc() && end == word.data() + word.size() && number >= 0
               ? std::optional(number)
               : std::nullopt;
}

std::optional<std::int64_t> number_in(const fs::path& path) {
    const std::vector<std::string> words = words_of(path);
    return words.empty() ? std::nullopt : number_in(words.front());
}

// The number after `name` in a table of names and numbers; 0 if there is none.
std::int64_t value_of(const std::vector<std::string>& table, const std::string& name) {
    const auto found = std::ranges::find(table, name);
    return found == table.end() || found + 1 == table.end() ? 0
                                                            : number_in(*(found + 1)).value_or(0);
}

std::int64_t droppable_bytes(const fs::path& folder, Version version) {
    const std::vector<std::string> table = words_of(folder / "memory.stat");
    const bool is_two = version == Version::two;
    const std::string prefix = is_two ? "" : "total_";
    const std::int64_t clean = value_of(table, prefix + "inactive_file") +
                               value_of(table, prefix + "active_file") -
                               value_of(table, is_two ? "file_dirty" : "total_dirty") -
                               value_of(table, is_two ? "file_writeback" : "total_writeback");
    return std::max<std::int64_t>(clean, 0);
}

void limit_memory(MachineMemory& memory, const fs::path& folder, Version version) {
    const bool is_two = version == Version::two;
    std::int64_t limit = std::numeric_limits<std::int64_t>::max();
    // Above memory.high the kernel slows a process down until it stands still.
    for (const char* name :
         is_two ? std::vector{"memory.max", "memory.high"} : std::vector{"memory.limit_in_bytes"}) {
        limit = std::min(limit, number_in(folder / name).value_or(limit));
    }
    // Version 1 writes "no limit" as a number near 2^63.
    if (static_cast<std::uint64_t>(limit) >= memory.total_bytes) {
        return;
    }
    const std::int64_t used =
        number_in(folder / (is_two ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
    const std::int64_t kept = std::max<std::int64_t>(used - droppable_bytes(folder, version), 0);
    const auto left = static_cast<std::size_t>(std::max<std::int64_t>(limit - kept, 1));
    memory.is_limited = true;
    memory.total_bytes = static_cast<std::size_t>(limit);
    memory.available_bytes = std::min(memory.available_bytes, left);
}

}  // namespace

MachineMemory machine_memory(const std::string& root) {
    const std::vector<std::string> table = words_of(root + "/proc/meminfo");
    const auto bytes_of = [&](const char* name) {
        return static_cast<std::size_t>(value_of(table, name)) * KiB;
    };
    MachineMemory memory{.total_bytes = bytes_of("MemTotal:"),
                         .available_bytes = bytes_of("MemAvailable:")};
    if (memory.total_bytes == 0) {
        return memory;
    }
    // A tighter ancestor may have less left although its limit is larger.
    const std::size_t machine = memory.total_bytes;
    std::size_t least = machine;
    visit_cgroups(root, "memory", [&](const fs::path& folder, Version version) {
        memory.total_bytes = machine;
        limit_memory(memory, folder, version);
        least = std::min(least, memory.total_bytes);
    });
    memory.total_bytes = least;
    return memory;
}

std::string own_host() {
    std::array<char, 256> name{};
    return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::vector<int> usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> cpus;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) {
                cpus.push_back(cpu);
            }
        }
    }
    return cpus.empty() ? std::vector{0} : cpus;
}

std::optional<double> cpu_quota(const std::string& root) {
    std::optional<double> least;
    visit_cgroups(root, "cpu", [&](const fs::path& folder, Version version) {
        std::optional<std::int64_t> quota;
        std::optional<std::int64_t> period;
        if (version == Version::two) {
            const std::vector<std::string> words = words_of(folder / "cpu.max");  // "max 100000"
            if (words.size() == 2) {
                quota = number_in(words[0]);
                period = number_in(words[1]);
            }
        } else {
            quota = number_in(folder / "cpu.cfs_quota_us");
            period = number_in(folder / "cpu.cfs_period_us");
        }
        if (quota && period && *quota > 0 && *period > 0) {
            const double cpus = static_cast<double>(*quota) / static_cast<double>(*period);
            least = std::min(least.value_or(cpus), cpus);
        }
    });
    return least;
}

namespace {

int within_quota(int cpus) {
    const std::optional<double> quota = cpu_quota();
    return quota && *quota < cpus ? std::max(static_cast<int>(*quota), 1) : cpus;
}

}  // namespace

int usable_cores() { return within_quota(static_cast<int>(usable_cpus().size())); }

int host_cores() {
    return within_quota(std::max(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), 1));
}

}  // namespace nearstep
