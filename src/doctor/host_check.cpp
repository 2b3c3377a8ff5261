// Checks whether a run may begin on a host. Used by the commands preflight and doctor.
#include "doctor/host_check.hpp"

#include "base/command_line.hpp"
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "config/load.hpp"
#include "data/text.hpp"
#include "data/tokenizer.hpp"
#include "engine/placement/device_speeds.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/spare_places.hpp"
#include "engine/placement/tier_shares.hpp"
#include "engine/restart/start.hpp"
#include "engine/state/state_drives.hpp"
#include "model/compute_device.hpp"
#include "model/geometry.hpp"
#include "mpi/topology.hpp"
#include "store/storage_folder.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

namespace nearstep::doctor {

namespace {

std::uint64_t digest_of_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw ConfigError(text("The file ", path, " cannot be read: put it there."));
    }
    Xxh3Stream digest;
    std::array<char, 65536> piece{};
    while (file.read(piece.data(), piece.size()) || file.gcount() > 0) {
        digest.add(std::as_bytes(std::span(piece).first(static_cast<std::size_t>(file.gcount()))));
    }
    return digest.digest();
}

std::uint64_t digest_of_data(const config::RunSettings& run) {
    const data::Corpus corpus = data::read_corpus(run.data);
    data::check_vocabulary(*corpus.tokenizer, run.model.vocabulary);
    data::check_lengths(corpus, run.data, run.model.context);
    const std::string digests = corpus.train_digest + corpus.valid_digest;
    return xxh3(std::as_bytes(std::span(digests)));
}

// Linux draws this id at each boot. Virtual hosts and containers share their machine's id.
std::string identity_of_machine() {
    std::string identity;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), identity);
    return identity;
}

// Whether the interface has a cable and an address.
bool is_up(const std::string& interface) {
    ifaddrs* raw = nullptr;
    if (getifaddrs(&raw) != 0) {
        throw IoError("The network interfaces of this host cannot be listed.");
    }
    const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, freeifaddrs);
    for (const ifaddrs* one = raw; one != nullptr; one = one->ifa_next) {
        const bool has_address = one->ifa_addr != nullptr && (one->ifa_addr->sa_family == AF_INET ||
                                                              one->ifa_addr->sa_family == AF_INET6);
        if (has_address && interface == one->ifa_name && (one->ifa_flags & IFF_UP) != 0 &&
            (one->ifa_flags & IFF_RUNNING) != 0) {
            return true;
        }
    }
    return false;
}

// Open MPI keeps files there that its ranks share.
void check_temporary_folder() {
    constexpr std::size_t kLeastBytes = 16 * MiB;
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (error) {
        throw ConfigError(text("The temporary folder that TMPDIR names cannot be used (",
                               error.message(), "): make it, or set TMPDIR to another one."));
    }
    const std::size_t free = store::free_bytes_of(folder.string()).value_or(kLeastBytes);
    if (free < kLeastBytes) {
        throw ConfigError(text("The temporary folder ", folder.string(), " has ",
                               human_bytes(static_cast<double>(free)),
                               " of free space, and MPI may need ",
                               human_bytes(static_cast<double>(kLeastBytes)),
                               ": make room there, or set TMPDIR to another folder."));
    }
}

// Checks what every run needs of the host, and returns what is known of it then.
HostCheck look_at_host(const config::RunSettings& run) {
    if (!run.hosts.interface.empty() && !is_up(run.hosts.interface)) {
        throw ConfigError(text("The network interface ", run.hosts.interface,
                               " (hosts.interface) is not up with an address: bring it up, or name "
                               "another in the site file."));
    }
    check_temporary_folder();
    return {.commit = commit(),
            .program_digest = digest_of_file("/proc/self/exe"),
            .data_digest = std::nullopt,
            .machine = identity_of_machine(),
            .cores = usable_cores()};
}

std::int64_t microseconds_now() {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

std::string digest_of_package(const std::string& python) {
    CommandEnd end = run_command({python, "-m", "nearstep_run._digest"}, StandardError::in_output);
    while (!end.output.empty() && end.output.back() == '\n') {
        end.output.pop_back();
    }
    std::string last = end.output.substr(end.output.rfind('\n') + 1);
    if (!end.is_success()) {
        throw ConfigError(text(python, " cannot use the package nearstep (", last,
                               "): install it there, as launch/setup does, or name another Python "
                               "in NEARSTEP_PYTHON."));
    }
    return last;
}

// The nodes of the run, as if all hosts had as many ranks as this one.
mpi::Topology nodes_like(const config::RunSettings& run, const config::HostPart& host, int ranks) {
    const int most = run.exchange.ranks_per_node > 0 ? run.exchange.ranks_per_node : host.ranks;
    const int computing = config::computing_ranks(run, ranks);
    std::vector<int> label(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
        const int first = rank < host.first_rank                ? 0
                          : rank < host.first_rank + host.ranks ? host.first_rank
                                                                : host.first_rank + host.ranks;
        label[static_cast<std::size_t>(rank)] = first + (rank - first) / most * most;
    }
    return mpi::set_apart_from(mpi::group_by(label), computing);
}

// Settles how the ranks of the host keep their state, as they will at the start of the run.
void choose_keeping(const config::RunSettings& run, const mpi::Topology& nodes,
                    const config::HostPart& host, engine::PlacedSettings& placed) {
    const engine::Layout layout{.elems = model::describe_trained(run.model).elems,
                                .dtype = run.model.dtype};
    std::optional<engine::RankKeeping> of_all;
    for (int rank = host.first_rank; rank < host.first_rank + host.ranks; ++rank) {
        const engine::RankKeeping mine = engine::keeping_of_rank(
            placed, layout, {}, nodes, rank, static_cast<std::size_t>(host.ranks));
        of_all = {.keeping = of_all ? std::min(of_all->keeping, mine.keeping) : mine.keeping,
                  .logs = of_all ? std::min(of_all->logs, mine.logs) : mine.logs};
    }
    engine::set_keeping(placed, layout, nodes, of_all.value_or(engine::RankKeeping{}));
}

}  // namespace

HostCheck check_host(const config::RunSettings& run, int ranks, const config::HostPart& host,
                     const std::string& granted, Unfinished unfinished) {
    const std::size_t parameters = model::describe_trained(run.model).elems;
    HostCheck facts = look_at_host(run);
    const int computing = config::computing_ranks(run, ranks);
    if (host.first_rank < computing) {
        facts.data_digest = digest_of_data(run);
    }
    const std::vector<int> drives = config::drives_per_rank(run, ranks);
    engine::PlacedSettings placed{static_cast<const config::EngineSettings&>(run)};
    const mpi::Topology nodes = nodes_like(run, host, ranks);
    placed.placement = engine::placement_on(nodes, run);
    const mpi::Topology copies = engine::copies_of(placed, nodes);
    placed.csd.tiers = {.gpu = run.csd.tiers.gpu.value_or(0),
                        .memory = run.csd.tiers.memory.value_or(0)};
    choose_keeping(run, nodes, host, placed);
    std::vector<store::PlannedFile> files;
    int before = 0;
    for (int rank = host.first_rank; rank < host.first_rank + host.ranks; ++rank) {
        const int count = drives[static_cast<std::size_t>(rank)];
        if (rank < computing) {
            model::choose_device(run.model.device, rank - host.first_rank);
        }
        placed.places = config::places_of_devices(run, before, count, granted);
        before += count;
        const std::vector<int>& together = copies.ranks_beside(rank);
        engine::resolve_tiers(placed, parameters, together, ranks);
        const shard::Replica copy = engine::make_copy(placed, parameters, together, ranks);
        for (const store::PlannedFile& file : engine::planned_files(placed, rank, ranks, copy)) {
            files.push_back(file);
        }
    }
    engine::check_memory_folder(placed);
    store::check_folders(files);
    facts.storage = engine::describe_drives(engine::drive_uses(files), run.csd);
    if (placed.logs > 1) {
        facts.storage += "; " + csd::describe(engine::largest_logged(
                                    placed, engine::make_ownership(placed, parameters, nodes)));
    }
    std::vector<std::string> paths;
    std::ranges::transform(files, std::back_inserter(paths), &store::PlannedFile::path);
    store::check_unused(paths);
    if (unfinished == Unfinished::refused) {
        engine::refuse_unfinished(run, host.first_rank == 0, config::steps_of);
    }
    if (engine::measures_speeds(run)) {
        facts.note =
            R"(csd.speed "auto" is measured at start, so space was checked for equal shares)";
    } else if (!run.csd.tiers.memory || !run.csd.tiers.gpu) {
        facts.note = R"(csd.tiers "auto" is known at start, so space was checked without it)";
    }
    facts.time_us = microseconds_now();
    return facts;
}

HostCheck check_host_of_script(const config::RunSettings& run, int ranks,
                               const config::HostPart& host, const Script& script) {
    HostCheck facts = look_at_host(run);
    if (host.first_rank < config::computing_ranks(run, ranks)) {
        facts.data_digest = digest_of_file(script.path);
    }
    facts.package = digest_of_package(script.python);
    facts.time_us = microseconds_now();
    return facts;
}

}  // namespace nearstep::doctor
