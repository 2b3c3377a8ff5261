// Reads what Linux says of the machine. Called by doctor.cpp.
#include "doctor/system.hpp"

#include "base/machine.hpp"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <system_error>

namespace nearstep::doctor {

namespace {

namespace fs = std::filesystem;

// Reads files of /proc and /sys, which have no size, to their end. Empty if there is none.
std::string read_whole(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string trimmed(const std::string& text) {
    constexpr const char* kBlanks = " \t\n";
    const std::size_t begin = text.find_first_not_of(kBlanks);
    return begin == std::string::npos
               ? ""
               : text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// The text after "name :" in the first line with that name.
std::string value_of(const std::string& table, const std::string& name) {
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t colon = line.find(':');
        if (colon != std::string::npos && trimmed(line.substr(0, colon)) == name) {
            return trimmed(line.substr(colon + 1));
        }
    }
    return "";
}

std::vector<std::string> gpu_names() {
    std::vector<std::string> names;
    std::error_code none;
    for (const fs::directory_entry& gpu :
         fs::directory_iterator("/proc/driver/nvidia/gpus", none)) {
        names.push_back(value_of(read_whole(gpu.path() / "information"), "Model"));
    }
    std::ranges::sort(names);
    return names;
}

}  // namespace

std::vector<std::string> find_features(const std::string& cpuinfo,
                                       const std::vector<std::string>& wanted) {
    std::istringstream flags(value_of(cpuinfo, "flags") + " " + value_of(cpuinfo, "Features"));
    const std::set<std::string> all{std::istream_iterator<std::string>(flags), {}};
    std::vector<std::string> found;
    std::ranges::copy_if(wanted, std::back_inserter(found),
                         [&](const std::string& word) { return all.count(word) > 0; });
    return found;
}

std::string chosen_word(const std::string& choices) {
    const std::size_t open = choices.find('[');
    const std::size_t close = choices.find(']', open == std::string::npos ? 0 : open);
    return open == std::string::npos || close == std::string::npos
               ? ""
               : choices.substr(open + 1, close - open - 1);
}

SystemFacts find_system() {
    const std::string cpuinfo = read_whole("/proc/cpuinfo");
    const MachineMemory memory = machine_memory();
    SystemFacts system;
    utsname names{};
    if (::uname(&names) == 0) {
        system.host = std::begin(names.nodename);
        system.kernel = std::begin(names.release);
    }
    system.processor = value_of(cpuinfo, "model name");
    system.features = find_features(
        cpuinfo, {"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16",
                  "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "sve", "bf16"});
    system.cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
    system.usable_cpus = usable_cores();
    system.memory_bytes = memory.total_bytes;
    system.available_bytes = memory.available_bytes;
    system.is_memory_limited = memory.is_limited;
    system.huge_pages = chosen_word(read_whole("/sys/kernel/mm/transparent_hugepage/enabled"));
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        system.lock_bytes = static_cast<std::size_t>(limit.rlim_cur);
    }
    system.gpus = gpu_names();
    return system;
}

}  // namespace nearstep::doctor
