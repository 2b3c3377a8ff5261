// Writes and parses the line of a manifest that names the layout. Used by the engine and by
// restarts.
#include "engine/placement/layout_line.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/number_list.hpp"
#include "config/key_limits.hpp"
#include "csd/keeping.hpp"
#include "engine/placement/devices.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <span>
#include <sstream>
#include <string_view>

namespace nearstep::engine {

namespace {

// The value of `key`; empty if it is missing.
std::string value_in(const std::string& layout, std::string_view key) {
    std::istringstream words(layout);
    for (std::string word; words >> word;) {
        if (word.starts_with(text(key, "="))) {
            return word.substr(key.size() + 1);
        }
    }
    return "";
}

constexpr auto kMostItems =
    static_cast<std::size_t>(config::kMostRanks) * static_cast<std::size_t>(config::kMostDevices);

// The numbers of a list; empty if something else is among them.
template <typename Number>
std::vector<Number> numbers_of(const std::string& layout, std::string_view key) {
    const std::string value = written_out(value_in(layout, key), kMostItems).value_or("");
    std::vector<Number> numbers;
    for (std::string_view rest = value; !rest.empty();) {
        Number number{};
        const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
        rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
        if (error != std::errc() || (!rest.empty() && (rest.front() != ',' || rest.size() == 1))) {
            return {};
        }
        rest.remove_prefix(rest.empty() ? 0 : 1);
        numbers.push_back(number);
    }
    return numbers;
}

template <typename Number>
bool are_within(const std::vector<Number>& numbers, config::Limits limits) {
    return std::ranges::all_of(
        numbers, [&](Number number) { return limits.hold(static_cast<double>(number)); });
}

std::string listed(const std::vector<double>& numbers) {
    std::string out;
    for (const double number : numbers) {
        std::string digits = text(number);
        if (std::stod(digits) != number) {  // it needs more digits
            std::array<char, 32> all{};
            digits.assign(all.data(),
                          std::to_chars(all.data(), all.data() + all.size(), number).ptr);
        }
        out += text(out.empty() ? "" : ",", digits);
    }
    return out;
}

}  // namespace

std::string digest_of_tiles(const shard::Partition& partition) {
    std::string facts;
    for (const shard::Subgroup& subgroup : partition.subgroups()) {
        facts += text(subgroup.device, ':', subgroup.tiles.begin, '-', subgroup.tiles.end, ';');
    }
    return to_hex(xxh3(std::as_bytes(std::span(facts))));
}

std::string layout_line(const PlacedSettings& settings, int ranks, const shard::Replica& copy) {
    const std::size_t together = copy.ranks.size();
    return text(
        "ranks=", ranks,
        " devices=", brief_list(joined(config::devices_per_rank(settings, ranks), ",")),
        " speeds=", brief_list(listed(speeds_of_devices(settings, ranks))),
        " subgroup_tiles=", settings.csd.subgroup_tiles,
        " update=", settings.mode == config::Mode::base ? "host" : "storage",
        " state=", name_of(settings.csd.state),
        settings.nodes.empty() ? "" : text(" nodes=", brief_list(joined(settings.nodes, ","))),
        together == static_cast<std::size_t>(ranks) ? "" : text(" copy_ranks=", together),
        settings.spare_places == 0 ? "" : text(" spare_places=", settings.spare_places),
        settings.logs == 1 ? "" : text(" logs=", settings.logs),
        " tiles_xxh3=", digest_of_tiles(copy.partition));
}

std::string brief_layout(const std::string& layout) {
    std::string out;
    std::istringstream words(layout);
    for (std::string word; words >> word;) {
        const std::size_t value = word.find('=') + 1;
        const std::string key = word.substr(0, value);
        const bool is_list = key == "devices=" || key == "speeds=" || key == "nodes=";
        const auto list = is_list ? written_out(word.substr(value), kMostItems) : std::nullopt;
        out += text(out.empty() ? "" : " ", list ? key + brief_list(*list) : word);
    }
    return out;
}

std::string without_spare_places(const std::string& layout) {
    std::string out;
    std::istringstream words(layout);
    for (std::string word; words >> word;) {
        if (!word.starts_with("spare_places=")) {
            out += text(out.empty() ? "" : " ", word);
        }
    }
    return out;
}

std::optional<LayoutValues> parse_layout(const std::string& layout) {
    LayoutValues values{.devices = numbers_of<int>(layout, "devices"),
                        .speeds = numbers_of<double>(layout, "speeds"),
                        .nodes = numbers_of<int>(layout, "nodes"),
                        .tiles_xxh3 = value_in(layout, "tiles_xxh3")};
    const std::vector<int> ranks = numbers_of<int>(layout, "ranks");
    const std::vector<std::size_t> tiles = numbers_of<std::size_t>(layout, "subgroup_tiles");
    const std::string update = value_in(layout, "update");
    const auto state = parse_word<csd::StateFormat>(value_in(layout, "state"));
    const std::vector<std::size_t> spare = numbers_of<std::size_t>(layout, "spare_places");
    const std::vector<std::size_t> logs = numbers_of<std::size_t>(layout, "logs");
    const bool has_nodes = !value_in(layout, "nodes").empty();
    if (ranks.size() != 1 || tiles.size() != 1 || !state || values.tiles_xxh3.empty() ||
        (update != "host" && update != "storage") ||
        !are_within(ranks, config::between(1, config::kMostRanks)) ||
        !are_within(tiles, config::between(1, config::kMostTiles)) ||
        values.devices.size() != static_cast<std::size_t>(ranks.front()) ||
        // Two more than config accepts may be in memory.
        spare.size() > 1 || !are_within(spare, config::between(1, config::kMostTiles)) ||
        logs.size() > spare.size() ||
        !are_within(logs, config::between(csd::kLeastLogs, csd::kMostLogs)) ||
        !are_within(values.devices, config::between(0, config::kMostDevices + 2)) ||
        values.nodes.size() != (has_nodes ? values.devices.size() : 0) ||
        !are_within(values.nodes, config::between(0, config::kMostRanks)) ||
        !are_within(values.speeds, config::not_negative()) ||
        !std::isfinite(std::accumulate(values.speeds.begin(), values.speeds.end(), 0.0))) {
        return std::nullopt;
    }
    const auto devices = std::accumulate(
        values.devices.begin(), values.devices.end(), std::size_t{0},
        [](std::size_t sum, int of_rank) { return sum + static_cast<std::size_t>(of_rank); });
    if (devices == 0 || devices != values.speeds.size()) {
        return std::nullopt;
    }
    values.ranks = ranks.front();
    values.subgroup_tiles = tiles.front();
    values.spare_places = spare.empty() ? 0 : spare.front();
    values.logs = logs.empty() ? 1 : logs.front();
    values.is_on_host = update == "host";
    values.state = *state;
    return values;
}

}  // namespace nearstep::engine
