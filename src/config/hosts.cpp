// Assigns ranks to hosts and devices to folders. Used by launch commands and by
// engine/placement/devices.cpp.
#include "config/hosts.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "config/key_limits.hpp"
#include "config/load.hpp"
#include "config/value.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace nearstep::config {

namespace {

// Parses "0-1,3" into {0, 1, 3}.
std::vector<int> numbers_in(const std::string& list) {
    std::vector<int> numbers;
    if (list == kNoDevices) {
        return numbers;
    }
    const char* at = list.data();
    const char* end = at + list.size();
    bool is_good = at != end;
    while (is_good && at != end) {
        int first = 0;
        auto read = std::from_chars(at, end, first);
        int last = first;
        is_good = read.ec == std::errc() && first >= 0 && first < kMostDevices;
        if (is_good && read.ptr != end && *read.ptr == '-') {
            read = std::from_chars(read.ptr + 1, end, last);
            is_good = read.ec == std::errc() && last >= first && last < kMostDevices;
        }
        for (int number = first; is_good && number <= last; ++number) {
            numbers.push_back(number);
        }
        at = read.ptr;
        if (is_good && at != end) {
            is_good = *at == ',' && at + 1 != end;
            ++at;
        }
    }
    if (!is_good) {
        throw ConfigError(text(
            "The devices granted to this host, NEARSTEP_CSDS = ", written(std::string_view(list)),
            ", are no list of numbers: set it as in \"0-1,3\"."));
    }
    return numbers;
}

// One for each of hosts.storage that the run uses.
int ranks_of_storage_hosts(const RunSettings& run) {
    return run.hosts.storage.empty() ? 0 : run.csd.storage_ranks;
}

void check_storage_hosts(const RunSettings& run) {
    const auto hosts = static_cast<int>(run.hosts.storage.size());
    if (hosts > 0 && run.hosts.names.empty()) {
        throw ConfigError(text("Site ", run.site, " has ", hosts,
                               " storage hosts beside this machine: name the hosts that compute in "
                               "hosts.names, or leave hosts.storage out."));
    }
    if (hosts > 0 && run.csd.storage_ranks > hosts) {
        throw ConfigError(text("csd.storage_ranks = ", run.csd.storage_ranks, " is more than the ",
                               hosts, hosts == 1 ? " host" : " hosts", " in hosts.storage of site ",
                               run.site, ": lower it, or name more."));
    }
}

}  // namespace

int ranks_of_site(const RunSettings& run) {
    return std::max<int>(1, static_cast<int>(run.hosts.names.size())) *
               std::max(1, run.hosts.ranks) +
           ranks_of_storage_hosts(run);
}

std::vector<HostPart> plan_hosts(const RunSettings& run, int ranks) {
    const bool is_here = run.hosts.names.empty();
    check_storage_hosts(run);
    const int most = is_here && run.hosts.ranks == 0 ? ranks : ranks_of_site(run);
    const int of_host = is_here && run.hosts.ranks == 0 ? ranks : std::max(1, run.hosts.ranks);
    if (ranks > most) {
        throw ConfigError(text("Site ", run.site, " takes ", most, " ranks, ", of_host,
                               " on each host, and ", ranks,
                               " are asked for: start fewer, or add to hosts.names or hosts.ranks "
                               "in its site file."));
    }
    const std::vector<int> devices = drives_per_rank(run, ranks);
    std::vector<HostPart> parts;
    const int on_storage_hosts = ranks_of_storage_hosts(run);
    for (int first = 0; first < ranks - on_storage_hosts; first += of_host) {
        parts.push_back({.name = is_here ? "" : run.hosts.names[parts.size()],
                         .first_rank = first,
                         .ranks = std::min(of_host, ranks - on_storage_hosts - first)});
    }
    for (int host = 0; host < on_storage_hosts; ++host) {
        parts.push_back({.name = run.hosts.storage[static_cast<std::size_t>(host)],
                         .first_rank = ranks - on_storage_hosts + host,
                         .ranks = 1});
    }
    for (HostPart& part : parts) {
        for (int rank = part.first_rank; rank < part.first_rank + part.ranks; ++rank) {
            part.devices += devices[static_cast<std::size_t>(rank)];
        }
        if (run.hosts.devices > 0 && part.devices > run.hosts.devices) {
            throw ConfigError(text("Host ", is_here ? run.site : part.name, " has ",
                                   run.hosts.devices, " devices (hosts.devices) and its ",
                                   part.ranks, " ranks ask for ", part.devices, ": lower ",
                                   Term::per_rank, ", or start fewer ranks."));
        }
    }
    return parts;
}

int folders_of_host(const EngineSettings& settings, const std::string& granted) {
    return static_cast<int>(granted.empty() ? settings.csd.path.size()
                                            : numbers_in(granted).size());
}

std::vector<int> places_of_devices(const EngineSettings& settings, int before, int count,
                                   const std::string& granted) {
    const auto folders = static_cast<int>(settings.csd.path.size());
    std::vector<int> places;
    if (granted.empty()) {
        for (int device = before; device < before + std::max(count, 1); ++device) {
            places.push_back(device % folders);
        }
        return places;
    }
    const std::vector<int> all = numbers_in(granted);
    const auto here = static_cast<int>(all.size());
    if (before + count > here) {
        throw ConfigError(text("The job has ", here, " devices on this host (",
                               on_one_line(granted), ") and its ranks ask for ", before + count,
                               " at least: ask the batch system for more, or lower ",
                               Term::per_rank, "."));
    }
    if (all.empty()) {
        return {0};  // for a rank's manifest
    }
    const auto first = all.begin() + (count == 0 ? 0 : before);
    places.assign(first, first + std::max(count, 1));
    const int highest = std::ranges::max(places);
    if (highest >= folders) {
        throw ConfigError(text("The job has device ", highest, " of this host and ", Term::path,
                               " names ", folders,
                               " folders: name one for each device of the host."));
    }
    return places;
}

}  // namespace nearstep::config
