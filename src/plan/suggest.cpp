// Evaluates the planner's formulas for what one machine can do with nearstep's Python package. Used
// by the command suggest.
#include "plan/suggest.hpp"

#include "base/error.hpp"
#include "plan/formulas.hpp"
#include "plan/kept_state.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace nearstep::plan {

namespace {

using arith::StateFormat;
using csd::Keeping;

// Bytes that a forward moves through memory beside matrix products, per layer, width and token:
// norms, activations, attention and residuals. With kProductsOfPeak a fit of rows in memory in
// docs/results, of widths from 1,024 to 4,096.
constexpr double kMovedBytes = 142;
// A GPU multiplies by a vocabulary that is no multiple of 64 in five times the time
// (docs/pytorch-reference.md, "Speed").
constexpr int kAlignedVocabulary = 64;
constexpr double kUnalignedTimes = 5;
constexpr double kLibraryBytes = 2.5e9;  // of CUDA, PyTorch and the engine, on host and GPU
constexpr double kKeepShare = 8;         // csd.slots keeps state in this part of the host's memory
constexpr double kHostMargin = 1.25;     // rows in docs/results took up to 1.4 times as much
constexpr double kFastEnough = 1.1;      // exact state is preferred within this

double elements(const Task& task) { return static_cast<double>(task.size.parameters); }

// The work of a step, as workload_of() describes it, with what it leaves out.
Workload work_of(const Machine& machine, const Task& task, const Way& way) {
    config::RunSettings run;
    run.model = task.model;
    run.csd.state = way.state;
    run.train.micro_batch = way.micro_batch;
    Workload work = workload_of(run, task.size, task.sequences);
    const double context = task.model.context;
    const double layers = task.model.layers;
    work.moved_bytes_per_sequence = context * layers * task.model.width * kMovedBytes;
    if (machine.has_gpu && task.model.vocabulary % kAlignedVocabulary != 0) {
        work.operations_per_sequence +=
            (kUnalignedTimes - 1) * 2 * context * task.model.vocabulary * task.model.width;
    }
    // Attention is fused, so that its scores are not kept.
    work.working_bytes = (work.kept_bytes - work.logits_bytes) / layers + work.logits_bytes;
    if (way.trained == Trained::adapters) {
        work.trained = task.adapters;
        work.state_bytes *= task.adapters;
    }
    work.keeping = way.keeping;
    work.is_in_memory = way.keeping != Keeping::twice;
    work.log_room = way.log_gb * kGiga;
    if (way.keeping == Keeping::twice && way.home != Home::storage) {
        work.kept =
            std::min(1.0, machine.host_memory / kKeepShare / (work.state_bytes * elements(task)));
    }
    return work;
}

Site site_of(const Machine& machine, const Workload& work) {
    Site site;
    site.gpu_peak = site.gpu_operations = machine.gpu_operations;
    site.gpu_memory = machine.gpu_memory - kLibraryBytes;
    site.gpu_memory_rate = machine.gpu_memory_rate;
    site.gpu_link = machine.gpu_link;
    site.gpu_to_gpu = machine.gpu_link;
    site.host_memory = machine.host_memory;
    site.host_memory_rate = machine.host_memory_rate;
    site.host_link = machine.host_memory_rate;
    site.device_read = site.device_write = site.device_total =
        machine.drive_rate > 0 ? machine.drive_rate : machine.host_memory_rate;
    site.device_updates = machine.host_memory_rate / (2 * work.state_bytes);
    site.device_memory = machine.host_memory;
    site.device_capacity = machine.drive_free;
    return site;
}

// Returns the way as the planner's choice: layers on the GPU keep all, streamed ones as many as
// fit, and sums of gradients that do not fit wait on the host.
Choice choice_of(const Problem& problem, const Way& way) {
    Choice choice;
    choice.codec = way.codec;
    choice.home = way.home;
    choice.order = Order::by_micro_batch;
    choice.kept = way.home == Home::gpu ? Kept::all : Kept::most;
    choice.sums = micro_batches(problem) > 1 ? Sums::host : Sums::gpu;
    choice.shares.memory = way.keeping == Keeping::twice ? 0 : 1;
    return choice;
}

void set_memory(const Machine& machine, const Task& task, const Problem& problem,
                const Choice& choice, Forecast& out) {
    const Workload& work = problem.work;
    const Way& way = out.way;
    const Numbers numbers(problem, choice);
    const Demand demand = demand_of(problem, choice, numbers);
    const KeptState state = kept_state(problem, choice, numbers);
    out.gpu_bytes = kLibraryBytes + demand.gpu;
    out.host_bytes = kLibraryBytes + demand.host + work.kept * work.state_bytes * elements(task);
    out.drive_bytes = demand.drive;
    out.written_bytes = state.written;
    out.logged = state.logged;
    out.replay_s = way.keeping == Keeping::logged ? replay_seconds(problem, choice) : 0;
    const bool has_drive = way.keeping != Keeping::once;
    const double of_host = kHostMargin * out.host_bytes;
    out.does_fit =
        (machine.has_gpu ? out.gpu_bytes <= machine.gpu_memory && of_host <= machine.host_memory
                         : out.gpu_bytes + of_host <= machine.host_memory) &&
        out.drive_bytes <= machine.drive_free && (!has_drive || machine.drive_rate > 0);
}

// The largest micro-batch that fits, else one sequence.
Forecast with_micro_batch(const Machine& machine, const Task& task, Way way) {
    constexpr std::array kSizes = {32, 16, 8, 4, 2, 1};
    constexpr int kMostUsual =
        8;  // more make a step no faster, but where each reads the parameters
    Forecast found;
    for (const int size : kSizes) {
        if (size > std::max(task.sequences, 1) ||
            (size > kMostUsual && way.home != Home::storage)) {
            continue;
        }
        way.micro_batch = size;
        found = forecast(machine, task, way);
        if (found.does_fit) {
            break;
        }
    }
    return found;
}

// Prefers the exact format of the state, unless the other is much faster or alone fits.
Forecast with_format(const Machine& machine, const Task& task, Way way) {
    const Forecast exact = with_micro_batch(machine, task, way);
    if (way.trained == Trained::adapters) {
        return exact;
    }
    way.state = StateFormat::compact;
    way.codec = Codec::q4;
    const Forecast small = with_micro_batch(machine, task, way);
    return small.does_fit && (!exact.does_fit || exact.step_s > kFastEnough * small.step_s) ? small
                                                                                            : exact;
}

// More logs than usual where the drive is so slow that a smaller part of the state in each step
// makes the step shorter.
Forecast with_logs(const Machine& machine, const Task& task, Way way) {
    way.keeping = Keeping::logged;
    Forecast best = with_format(machine, task, way);
    for (std::size_t logs = 2 * csd::kUsualLogs; logs <= csd::kMostLogs; logs *= 2) {
        way.log_gb = std::ceil(static_cast<double>(logs * best.logged.log_bytes) / 1e7) / 100;
        const Forecast more = with_format(machine, task, way);
        if (more.does_fit && best.step_s > kFastEnough * more.step_s) {
            best = more;
        }
    }
    return best;
}

// Logs spare the drive where memory suffices. Adapters have little state. State in memory alone
// survives no reboot, so that it must be worth that.
Forecast best_of_home(const Machine& machine, const Task& task, Way way) {
    constexpr double kWorth = 1.5;
    const bool is_from_storage = way.home == Home::storage;
    way.host_memory = is_from_storage ? machine.host_memory / 2 : 0;
    Forecast best = with_format(machine, task, way);
    way.host_memory = is_from_storage ? machine.host_memory / kHostMargin : 0;  // with the state
    const Forecast logged = with_logs(machine, task, way);
    const bool is_better =
        logged.step_s <= kFastEnough * best.step_s && logged.written_bytes < best.written_bytes;
    if (logged.does_fit && way.trained == Trained::all && (!best.does_fit || is_better)) {
        best = logged;
    }
    way.keeping = Keeping::once;
    const Forecast once = with_format(machine, task, way);
    return once.does_fit && (!best.does_fit || best.step_s > kWorth * once.step_s) ? once : best;
}

void add(const Forecast& one, std::vector<Forecast>& found) {
    if (one.does_fit) {
        found.push_back(one);
    }
}

// The simpler of two ways that are about as fast is worth more.
double worth_of(const Forecast& one) {
    constexpr double kSimpler = 0.05;
    return one.tokens_per_s * (1 - kSimpler * static_cast<double>(index_of(one.way.home)));
}

}  // namespace

Forecast forecast(const Machine& machine, const Task& task, const Way& way) {
    Problem problem;
    problem.work = work_of(machine, task, way);
    problem.site = site_of(machine, problem.work);
    if (way.host_memory > 0) {
        problem.site.host_memory = way.host_memory;
    }
    const Choice choice = choice_of(problem, way);
    Forecast out{.way = way};
    out.step_s = cost_of(problem, choice).terms.step;
    out.tokens_per_s = problem.work.sequences * problem.work.tokens_per_sequence / out.step_s;
    set_memory(machine, task, problem, choice, out);
    return out;
}

std::vector<Forecast> suggest(const Machine& machine, const Task& task) {
    std::vector<Forecast> found;
    for (const Home home : {Home::gpu, Home::host, Home::storage}) {
        if (home == Home::gpu || machine.has_gpu) {
            add(best_of_home(machine, task, {.trained = Trained::all, .home = home}), found);
        }
    }
    std::vector<Forecast> of_adapters;
    for (const Home home : {Home::gpu, Home::host}) {
        if (home == Home::gpu || machine.has_gpu) {
            add(best_of_home(machine, task, {.trained = Trained::adapters, .home = home}),
                of_adapters);
        }
    }
    if (!of_adapters.empty()) {
        add(*std::ranges::max_element(of_adapters, {}, worth_of), found);
    }
    std::ranges::stable_sort(found, std::greater(), worth_of);
    constexpr std::size_t kMost = 3;  // of four, one of them LoRA's
    found.resize(std::min(found.size(), kMost));
    std::ranges::stable_sort(found, {}, &Forecast::step_s);
    return found;
}

std::string name_of(const Way& way) {
    std::string name = way.trained == Trained::all ? "all parameters" : "LoRA's adapters";
    name += way.home == Home::gpu    ? ""
            : way.home == Home::host ? ", layers streamed from the host"
                                     : ", layers streamed from the state";
    return text(name, ", ", nearstep::name_of(way.state), " state ",
                way.keeping == Keeping::twice  ? "on the drive"
                : way.keeping == Keeping::once ? "in host memory"
                                               : "in host memory with logs on the drive");
}

}  // namespace nearstep::plan
