// Examines each node: processor, memory, storage, GPUs and libraries. Called by the command doctor.
#include "doctor/doctor.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/number_list.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "checkpoint/checkpoint.hpp"
#include "config/load.hpp"
#include "csd/update_engine.hpp"
#include "doctor/host_check.hpp"
#include "doctor/system.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"
#include "model/compute_device.hpp"
#include "model/network.hpp"
#include "model/torch_library.hpp"
#include "mpi/mpi_library.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/topology.hpp"
#include "store/storage_folder.hpp"
#include "store/transport.hpp"

#include <nlohmann/json.hpp>

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace nearstep::doctor {

namespace {

using Json = nlohmann::ordered_json;

// Whether a node's ranks compute, and whether they hold devices. Storage ranks hold devices and do
// not compute; beside them, other ranks may hold none.
struct Duties {
    bool computes = true;
    bool holds = true;
};

std::string size_text(std::size_t bytes) { return human_bytes(static_cast<double>(bytes)); }

Json find_cpu() {
    const std::string cpuinfo = read_whole("/proc/cpuinfo");
    const std::string name = value_of(cpuinfo, "model name");
    const std::vector<std::string> features = find_features(
        cpuinfo, {"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16",
                  "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "sve", "bf16"});
    const long cpus = ::sysconf(_SC_NPROCESSORS_ONLN);
    const int usable = usable_cores();
    return {{"summary", text(name.empty() ? "a processor" : name, ", ", usable, " of ", cpus,
                             " CPUs for this rank: ", joined(features, " "))},
            {"name", name},
            {"cpus", cpus},
            {"usable_cpus", usable},
            {"features", features}};
}

Json find_memory() {
    const MachineMemory memory = machine_memory();
    return {{"summary",
             text(size_text(memory.total_bytes), ", of which ", size_text(memory.available_bytes),
                  " are available", memory.is_limited ? " (the limit of a cgroup)" : "")},
            {"bytes", memory.total_bytes},
            {"available_bytes", memory.available_bytes},
            {"is_limited", memory.is_limited}};
}

// Requests memory as a slot does, and checks what the kernel gave.
Json find_huge_pages() {
    const std::string setting =
        chosen_word(read_whole("/sys/kernel/mm/transparent_hugepage/enabled"));
    const memory::Buffer buffer(32 * MiB);
    const std::size_t backed = memory::huge_page_bytes(std::array{&buffer});
    return {{"summary",
             text(size_text(backed), " of ", size_text(buffer.size()),
                  " were given (the kernel's setting: ", setting.empty() ? "not told" : setting,
                  ")", backed < buffer.size() ? "; buffers are slower without" : "")},
            {"setting", setting},
            {"asked_bytes", buffer.size()},
            {"given_bytes", backed}};
}

Json find_memory_lock() {
    rlimit limit{};
    const bool is_limited =
        ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return {{"summary", text(is_limited ? size_text(limit.rlim_cur) : "no limit",
                             " (RLIMIT_MEMLOCK); buffers are not locked, so that any limit does")},
            {"bytes", is_limited ? Json(limit.rlim_cur) : Json()}};
}

Json find_engine() {
    std::vector<std::string> usable;
    for (const csd::UpdateEngine& engine : csd::engines()) {
        usable.emplace_back(engine.name);
    }
    return {{"summary", text(csd::best_engine().name, " updates the state of emulated devices (of ",
                             joined(usable), ")")},
            {"chosen", csd::best_engine().name},
            {"usable", usable}};
}

Json find_model(const config::RunSettings& run) {
    const model::TorchLibrary library = model::find_library();
    std::string path;
    try {
        path = model::describe_backend(run.model, model::choose_device(run.model.device, 0));
    } catch (const ConfigError& refusal) {
        path = refusal.what();
    }
    return {{"summary",
             text(path, "; built ", library.cuda.empty() ? "without CUDA" : "for CUDA ",
                  library.cuda, ", ", library.cpu_capability, ", ", library.threads, " threads")},
            {"torch", library.version},
            {"cuda", library.cuda.empty() ? Json() : Json(library.cuda)},
            {"has_nccl", library.has_nccl},
            {"cpu_capability", library.cpu_capability},
            {"threads", library.threads},
            {"gpus", library.gpus},
            {"path", path}};
}

// Finds the GPUs. `seen`: the GPUs that PyTorch finds.
Json find_gpus(const Json& seen) {
    std::vector<std::string> names;
    std::error_code none;
    for (const std::filesystem::directory_entry& gpu :
         std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", none)) {
        names.push_back(value_of(read_whole(gpu.path() / "information"), "Model"));
    }
    std::ranges::sort(names);
    const std::string& obstacle = memory::why_no_gpu();
    return {{"summary", text(names.empty() ? "NVIDIA's driver shows none" : joined(names),
                             "; PyTorch finds ", seen, obstacle.empty() ? "" : ". ", obstacle)},
            {"names", names},
            {"seen_by_torch", seen},
            {"obstacle", obstacle.empty() ? Json() : Json(obstacle)}};
}

Json find_state_io(const config::RunSettings& run) {
    const store::IoKind wanted = run.csd.io;
    std::string refusal;
    try {
        static_cast<void>(store::Transport::make(store::IoKind::io_uring, {}, {}));
    } catch (const ConfigError& reason) {
        refusal = reason.what();
    }
    const bool is_uring = wanted != store::IoKind::threads && refusal.empty();
    std::string summary = is_uring ? "io_uring" : "threads";
    if (wanted == store::IoKind::io_uring && !refusal.empty()) {
        summary = refusal;
    } else if (!refusal.empty()) {
        summary += text("; ", refusal);
    } else if (wanted == store::IoKind::threads) {
        summary += ", as csd.io says; io_uring would work";
    }
    return {{"summary", summary},
            {"wanted", name_of(wanted)},
            {"chosen", is_uring ? "io_uring" : "threads"},
            {"io_uring_refusal", refusal.empty() ? Json() : Json(refusal)}};
}

Json find_folder(const std::string& path) {
    const store::FolderFacts facts = store::examine_folder(path);
    const std::string free =
        facts.free_bytes ? text(size_text(*facts.free_bytes), " free") : "free space unknown";
    return {{"summary", text("\"", path, "\"", facts.is_there ? "" : " (not there yet)", " on ",
                             facts.filesystem, ", ", free, ", ",
                             facts.obstacle.empty() ? "direct I/O" : facts.obstacle)},
            {"path", path},
            {"is_there", facts.is_there},
            {"filesystem", facts.filesystem},
            {"free_bytes", facts.free_bytes ? Json(*facts.free_bytes) : Json()},
            {"is_direct", facts.is_direct},
            {"obstacle", facts.obstacle.empty() ? Json() : Json(facts.obstacle)}};
}

Json find_mpi() {
    const mpi::Library library = mpi::describe_library();
    const mpi::CudaSupport support = mpi::cuda_support();
    const char* answer = "";
    if (support != mpi::CudaSupport::unknown) {
        answer = support == mpi::CudaSupport::yes ? ", reads GPU memory (CUDA-aware)"
                                                  : ", does not read GPU memory (not CUDA-aware)";
    }
    return {
        {"summary", text(mpi::describe(library), answer, "; it moves host memory alone")},
        {"library", library.version},
        {"transport", library.transport.empty() ? Json() : Json(library.transport)},
        {"networks", library.networks},
        {"is_cuda_aware",
         support == mpi::CudaSupport::unknown ? Json() : Json(support == mpi::CudaSupport::yes)}};
}

Json find_libraries() {
    const std::string hdf5 = checkpoint::hdf5_version();
    const std::string xxhash = xxhash_version();
    const std::string toml = config::toml_version();
    return {{"summary", text("HDF5 ", hdf5, ", xxHash ", xxhash, ", toml++ ", toml)},
            {"hdf5", hdf5},
            {"xxhash", xxhash},
            {"tomlplusplus", toml}};
}

// The slowest link between any two GPUs that the program sees.
memory::PeerLink slowest_link(int gpus) {
    memory::PeerLink slowest = memory::PeerLink::nvlink;
    for (int gpu = 1; gpu < gpus; ++gpu) {
        for (int other = 0; other < gpu; ++other) {
            slowest = std::min(slowest, memory::link_between(gpu, other));
        }
    }
    return slowest;
}

Json find_nccl(const config::RunSettings& run) {
    const std::string version = nccl::library_version();
    const int gpus = memory::gpus();
    std::string link;
    if (gpus > 1) {
        const memory::PeerLink slowest = slowest_link(gpus);
        link = slowest == memory::PeerLink::nvlink ? "NVLink"
               : slowest == memory::PeerLink::pcie ? "PCIe"
                                                   : "no peer access";
    }
    const bool is_allowed = run.exchange.transport != config::GpuPath::mpi &&
                            run.exchange.transport != config::GpuPath::host &&
                            !run.compress.error_feedback &&
                            run.model.device != config::Processor::cpu;
    const bool is_used = !version.empty() && gpus > 1 && is_allowed;
    const std::string most = text("up to ", gpus, " ranks of this node");
    return {
        {"summary", text(version.empty() ? "no NCCL here or in this build" : "NCCL " + version,
                         link.empty() ? "" : text(", ", link, " between all ", gpus, " GPUs"), "; ",
                         is_used ? most : "ranks of this node", " add up their gradients ",
                         is_used ? "between their GPUs, more in host memory" : "in host memory",
                         is_allowed ? "" : ", as the settings say")},
        {"is_built", !version.empty()},
        {"version", version.empty() ? Json() : Json(version)},
        {"link", link.empty() ? Json() : Json(link)},
        {"path", is_used ? "nccl" : "mpi"}};
}

// An object with a member per topic that matters to the duties: its facts, and a "summary" in words
// of what was found and how a run with these settings uses it. To see what works, it allocates some
// MiB, opens an io_uring and writes a page in each folder of csd.path, and leaves none of them
// behind.
Json find_all(const config::RunSettings& run, Duties duties) {
    Json findings;
    findings["cpu"] = find_cpu();
    findings["memory"] = find_memory();
    findings["huge_pages"] = find_huge_pages();
    findings["memory_lock"] = find_memory_lock();
    if (duties.computes) {
        findings["model"] = find_model(run);
        findings["gpus"] = find_gpus(findings["model"]["gpus"]);
    }
    if (duties.holds) {
        findings["engine"] = find_engine();
        findings["state_io"] = find_state_io(run);
    }
    // A rank's manifest is in the first folder.
    for (std::size_t i = 0; i < (duties.holds ? run.csd.path.size() : 1); ++i) {
        findings["state_folder_" + std::to_string(i)] = find_folder(run.csd.path[i]);
    }
    findings["mpi"] = find_mpi();
    if (duties.computes) {
        findings["nccl_nvlink"] = find_nccl(run);
    }
    if (duties.holds) {
        add_card_findings(run, findings);
    }
    findings["libraries"] = find_libraries();
    return findings;
}

// Whether the ranks of a node may begin the run, by the checks that launchers make before it.
Json find_run(const config::RunSettings& run, const std::vector<int>& ranks, int all_ranks) {
    const int count = static_cast<int>(ranks.size());
    std::string obstacle;
    HostCheck check;
    try {
        config::validate_for_ranks(run, all_ranks);
        check = check_host(run, all_ranks,
                           {.name = "", .first_rank = ranks.front(), .ranks = count, .devices = 0},
                           "", Unfinished::refused);
    } catch (const Error& refusal) {
        obstacle = refusal.what();
    }
    std::string summary = text("may begin here on ", count, " of ", all_ranks, " ranks");
    for (const std::string& more : {check.note, check.storage}) {
        summary += more.empty() ? "" : "; " + more;
    }
    return {{"summary", obstacle.empty() ? summary : obstacle},
            {"may_begin", obstacle.empty()},
            {"storage", check.storage.empty() ? Json() : Json(check.storage)},
            {"obstacle", obstacle.empty() ? Json() : Json(obstacle)}};
}

// From here on ranks only hold the state. All ranks have both duties if there are fewer of them
// than the run's, such as one on the user's own machine.
int first_storage_rank(const config::RunSettings& run, int ranks) {
    return run.csd.storage_ranks < ranks ? ranks - run.csd.storage_ranks : ranks;
}

Duties duties_of(const config::RunSettings& run, int rank, int ranks) {
    const int first = first_storage_rank(run, ranks);
    return {.computes = rank < first,
            .holds = rank >= first || first == ranks || run.csd.per_rank.size() > 1};
}

void print_node(const Json& node, int ranks, std::ostream& out) {
    out << "node " << node["host"].get<std::string>() << ": "
        << name_ranks(node["ranks"].get<std::vector<int>>()) << " of " << ranks
        << (!node["computes"].get<bool>() ? ", holds the state alone"
            : !node["holds"].get<bool>()  ? ", computes alone"
                                          : "")
        << ", Linux " << node["kernel"].get<std::string>() << "\n";
    const Json& findings = node["findings"];
    std::size_t width = 0;
    for (const auto& [topic, facts] : findings.items()) {
        width = std::max(width, topic.size());
    }
    for (const auto& [topic, facts] : findings.items()) {
        std::string words = topic;
        std::replace(words.begin(), words.end(), '_', ' ');
        out << "  " << words << std::string(width - topic.size() + 2, ' ')
            << facts["summary"].get<std::string>() << "\n";
    }
}

}  // namespace

Json examine(const mpi::Communicator& world, const config::RunSettings& run, RunFinding wanted) {
    const mpi::Topology nodes =
        mpi::set_apart_from(mpi::discover_nodes(world), first_storage_rank(run, world.size()));
    std::string mine;
    if (nodes.rank_in_group(world.rank()) == 0) {
        utsname system{};
        ::uname(&system);
        const Duties duties = duties_of(run, world.rank(), world.size());
        const std::vector<int>& ranks = nodes.ranks_beside(world.rank());
        Json findings = find_all(run, duties);
        if (wanted == RunFinding::included) {
            findings["run"] = find_run(run, ranks, world.size());
        }
        const Json node = {{"host", system.nodename}, {"kernel", system.release},
                           {"ranks", ranks},          {"computes", duties.computes},
                           {"holds", duties.holds},   {"findings", std::move(findings)}};
        mine = node.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    Json report = {{"version", version()},
                   {"commit", commit()},
                   {"site", run.site},
                   {"ranks", world.size()},
                   {"nodes", Json::array()}};
    for (const std::vector<int>& ranks : nodes.ranks_of) {
        report["nodes"].push_back(Json::parse(world.broadcast(mine, ranks.front())));
    }
    return report;
}

void print(const Json& report, std::ostream& out) {
    out << "nearstep " << report["version"].get<std::string>() << ", commit "
        << report["commit"].get<std::string>() << ", site " << report["site"].get<std::string>()
        << "\n";
    for (const Json& node : report["nodes"]) {
        print_node(node, report["ranks"].get<int>(), out);
    }
}

}  // namespace nearstep::doctor
