// Divides the state among GPU memory, host memory and drives. Called by the search; the times also
// by cost.cpp.
#include "plan/tier_times.hpp"

#include "plan/cost.hpp"
#include "plan/formulas.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nearstep::plan {

namespace {

// A tier that could hold `most` of the state. Held in full, its update takes `whole_s` and begins
// `later_s` after that of the drives.
struct TierUpdate {
    double most = 0;
    double whole_s = 0;
    double later_s = 0;

    double within(double time_s) const {
        const double left = time_s - later_s;
        return left < 0 ? 0 : left < most * whole_s ? left / whole_s : most;
    }
};

// Whether GPUs update state: deltas are the host's.
bool uses_gpus(const Choice& choice) { return choice.gather != Gather::delta; }

// The share of the state that a tier may hold: as much as was asked for, or half of the free
// memory.
double most_of(const std::optional<double>& asked_gb, double state_bytes, double free_bytes) {
    const double bytes =
        asked_gb ? *asked_gb * kGiga : config::kTierShareOfFree * std::max(0.0, free_bytes);
    return std::min(1.0, bytes / state_bytes);
}

// Takes what was asked as a number from `rest`; what "auto" may hold stays in the tier.
double taken(const std::optional<double>& asked_gb, TierUpdate& tier, double& rest) {
    if (!asked_gb) {
        return 0;
    }
    const double share = std::min(tier.most, rest);
    tier.most = 0;
    rest -= share;
    return share;
}

struct TierUpdates {
    TierUpdate gpu;
    TierUpdate memory;
    TierUpdate drive;
    TierUpdate sent;  // of host memory and drives: what storage nodes can send
};

// The shortest time in which the tiers update `rest` together; infinite if they cannot hold it.
double shortest(const TierUpdates& tiers, double rest) {
    const auto held = [&](double time_s) {
        return tiers.gpu.within(time_s) +
               std::min(tiers.memory.within(time_s) + tiers.drive.within(time_s),
                        tiers.sent.within(time_s));
    };
    double enough = 0;
    for (const TierUpdate& tier : {tiers.gpu, tiers.memory, tiers.drive, tiers.sent}) {
        enough = std::max(enough, tier.later_s + tier.most * tier.whole_s);
    }
    if (held(enough) < rest) {
        return std::numeric_limits<double>::infinity();
    }
    double less = 0;
    constexpr int kHalvings = 40;
    for (int i = 0; i < kHalvings; ++i) {
        const double middle = (less + enough) / 2;
        (held(middle) < rest ? less : enough) = middle;
    }
    return enough;
}

}  // namespace

TierSeconds tier_seconds(const Problem& problem, const Choice& choice, const Numbers& n) {
    const Site& site = problem.site;
    const double state = problem.work.state_bytes;
    const double updated = n.parameters * n.copies;
    const double of_gpu = choice.shares.gpu * updated / problem.ranks();
    const double of_holder = choice.shares.memory * updated / problem.holders();
    const DeviceTime device = device_time(problem, n.handover, n.new_bytes);
    const bool has_gpus = uses_gpus(choice) && problem.storage_nodes == 0;
    // Parameters per second; no engine's limit means that only memory bounds it.
    const double rate =
        (device.engine > 0 ? 1 / device.engine : 0) + (has_gpus ? site.gpu_link / state : 0);
    return {.gpu = of_gpu * std::max(seconds(2 * (state + n.element), site.gpu_memory_rate),
                                     seconds(std::max(n.handover, n.new_bytes), site.gpu_link)),
            .memory = std::max(
                device.engine > 0 ? seconds(of_holder, rate) : 0,
                seconds(2 * state * of_holder * problem.holders_of_node(), site.host_memory_rate))};
}

config::TierBytes tier_bytes(const Problem& problem, const Choice& choice) {
    const Numbers n(problem, choice);
    const double bytes = problem.work.state_bytes * n.parameters * n.copies;
    const double of_holder = bytes / problem.holders();
    const double places = problem.work.places();
    return {.drive = places * of_holder * choice.shares.of_drives(),
            .memory = places * of_holder * choice.shares.memory,
            .gpu = bytes / problem.ranks() * choice.shares.gpu};
}

Shares best_shares(const Problem& problem, Choice choice, const config::Tiers& asked) {
    choice.shares = {};
    const bool has_gpu = config::is_used(asked.gpu) && uses_gpus(choice);
    const bool is_in_memory = problem.work.is_in_memory;
    if ((!has_gpu && (is_in_memory || !config::is_used(asked.memory))) ||
        choice.home == Home::storage) {
        return {.memory = is_in_memory ? 1.0 : 0.0};
    }
    const Site& site = problem.site;
    const Cost drives = cost_of(problem, choice);
    choice.shares = {.gpu = 1, .memory = 1};
    const config::TierBytes state = tier_bytes(problem, choice);
    const TierSeconds whole = tier_seconds(problem, choice, Numbers(problem, choice));
    const Terms& t = drives.terms;
    const double blocks = problem.work.model.blocks;
    const double rounds = Numbers(problem, choice).rounds;
    TierUpdate gpu{
        .most = has_gpu ? most_of(asked.gpu, state.gpu, site.gpu_memory - drives.demand.gpu) : 0,
        .whole_s = whole.gpu,
        .later_s = t.fwd_gpu / rounds * (1 - 1 / blocks)};
    TierUpdate memory{
        .most = is_in_memory ? 1
                : config::is_used(asked.memory)
                    ? most_of(asked.memory, state.memory,
                              (site.host_memory - drives.demand.host) / problem.holders_of_node())
                    : 0,
        .whole_s = whole.memory};
    double rest = 1;
    Shares shares;
    shares.gpu = has_gpu ? taken(asked.gpu, gpu, rest) : 0;
    shares.memory = is_in_memory ? 0 : taken(asked.memory, memory, rest);
    // A drive holds whole tiles.
    const double all_tiles = Numbers(problem, choice).all_tiles;
    const double tiles = std::floor(all_tiles * site.device_capacity / drives.demand.drive);
    const TierUpdate drive{.most = is_in_memory ? 0 : std::min(1.0, tiles / all_tiles),
                           .whole_s = std::max(t.csd, t.up)};
    // Where each storage node sends to several nodes, less state there is sooner sent.
    const TierUpdate sent{
        .most = 1,
        .whole_s =
            problem.storage_nodes > 0 && problem.nodes > problem.storage_nodes ? t.gather : 0};
    const double time_s = shortest({gpu, memory, drive, sent}, rest);
    shares.gpu += std::min(rest, gpu.within(time_s));
    shares.memory += std::min(rest - gpu.within(time_s), memory.within(time_s));
    return shares;
}

}  // namespace nearstep::plan
