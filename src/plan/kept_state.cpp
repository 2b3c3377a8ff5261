// Counts what state and its logs take. Used by a run's start and by demands and costs of plans.
#include "plan/kept_state.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "csd/gradient_log.hpp"
#include "csd/payload_memory.hpp"
#include "plan/formulas.hpp"
#include "plan/link_rates.hpp"
#include "store/storage_folder.hpp"
#include "store/subgroup_header.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace nearstep::plan {

namespace {

// Whether devices read the state of before from a place of its own.
bool needs_older(const config::EngineSettings& settings) {
    return settings.mode == config::Mode::base ||
           settings.csd.device != config::DeviceKind::emulated ||
           rates_of(settings.link).are_shaped();
}

bool has_folders_in_memory(const config::EngineSettings& settings) {
    return std::ranges::all_of(settings.csd.path, [](const auto& folder) {
        return store::lies_in_memory(store::nearest_present(folder));
    });
}

}  // namespace

csd::Keeping keeping_of(const config::EngineSettings& settings, bool lies_in_memory) {
    if (!settings.csd.log.empty()) {
        return csd::Keeping::logged;
    }
    const bool survives_power_cut =
        settings.csd.durability == config::Durability::step && !lies_in_memory;
    return survives_power_cut || needs_older(settings) ? csd::Keeping::twice : csd::Keeping::once;
}

bool is_in_memory(const config::EngineSettings& settings) {
    return !settings.csd.log.empty() || (has_folders_in_memory(settings) && !needs_older(settings));
}

void set_keeping(const config::EngineSettings& settings, Workload& work) {
    work.keeping = keeping_of(settings, has_folders_in_memory(settings));
    work.is_in_memory = is_in_memory(settings);
    work.log_room = settings.csd.log_gb * kGiga;
}

namespace {

// The bytes of one update in the log of the busiest drive's device.
std::size_t log_bytes(const Choice& choice, const Numbers& n, double tiles) {
    const bool is_dense = choice.handover == Handover::dense;
    const double sources = is_dense ? 1 : n.lists;
    const auto payload =
        static_cast<std::size_t>(n.handover / sources * static_cast<double>(shard::kTileElems));
    const std::size_t of_tile =
        csd::PayloadMemory::tile_bytes(payload, static_cast<std::size_t>(sources));
    return csd::GradientLog::file_bytes(static_cast<std::size_t>(tiles) * of_tile);
}

}  // namespace

KeptState kept_state(const Problem& problem, const Choice& choice, const Numbers& n) {
    const Workload& work = problem.work;
    if (!work.is_in_memory) {
        const double once = work.state_bytes * n.share();
        return {.drive = work.places() * once, .written = once};
    }
    const double tiles = std::ceil(n.all_tiles * choice.shares.memory);
    const double once = work.state_bytes * tiles * static_cast<double>(shard::kTileElems);
    const auto subgroups = static_cast<std::size_t>(std::ceil(tiles / n.subgroup_tiles));
    const auto payload = static_cast<std::size_t>(work.state_bytes * n.subgroup_tiles *
                                                  static_cast<double>(shard::kTileElems));
    const auto place =
        static_cast<double>(store::kHeaderBytes + round_up(payload, store::kPageBytes));
    const double devices = problem.most_csds();
    if (work.keeping == csd::Keeping::once) {
        const auto spare = static_cast<double>(csd::spare_places_of_device(
            static_cast<int>(std::ceil(devices / problem.holders_of_node()))));
        return {.memory =
                    devices * (once + std::min(spare, static_cast<double>(subgroups)) * place +
                               static_cast<double>(log_bytes(choice, n, tiles)))};
    }
    KeptState kept{.logged = {.subgroups = subgroups,
                              .place_bytes = static_cast<std::size_t>(place),
                              .log_bytes = log_bytes(choice, n, tiles)},
                   .log_room = work.log_room * problem.holders_of_node() / devices};
    csd::LoggedState& logged = kept.logged;
    logged.logs = std::max(csd::kLeastLogs,
                           csd::logs_within(kept.log_room, static_cast<double>(logged.log_bytes)));
    kept.memory = devices * static_cast<double>(logged.memory_bytes());
    kept.drive = static_cast<double>(logged.state_bytes() + logged.all_log_bytes());
    kept.written = static_cast<double>(logged.step_bytes());
    return kept;
}

double replay_seconds(const Problem& problem, const Choice& choice) {
    const Numbers n(problem, choice);
    const csd::LoggedState logged = kept_state(problem, choice, n).logged;
    const double engine = device_time(problem, n.handover, n.new_bytes).engine;
    const double elements =
        n.all_tiles * choice.shares.memory * static_cast<double>(shard::kTileElems);
    return seconds(static_cast<double>(logged.all_log_bytes()), problem.site.device_read) +
           static_cast<double>(logged.logs) / 2 * engine * elements;
}

std::string describe(const csd::LoggedState& logged, double replay_s) {
    return text(csd::describe(logged), ", in about ", three_digits(replay_s), " s");
}

nlohmann::json to_json(const csd::LoggedState& logged, double replay_s) {
    return {{"count", logged.logs},
            {"bytes", logged.all_log_bytes()},
            {"memory_bytes", logged.memory_bytes()},
            {"replay_s", replay_s}};
}

}  // namespace nearstep::plan
