// Finds the cards of a host and what hinders their use. Called by doctor.cpp.
#include "base/error.hpp"
#include "doctor/doctor.hpp"
#include "doctor/system.hpp"
#include "fpga/host/inventory.hpp"
#include "fpga/host/pairing.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

namespace nearstep::doctor {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
// The platform that fpga/ builds kernels for. Shells end in _base_2, platforms in _2_202110_1.
constexpr const char* kPlatform = "xilinx_u2_gen3x4_xdma_gc";
constexpr double kKernelGib = 4;  // of a bank of memory

template <typename T>
Json or_null(const std::optional<T>& value) {
    return value ? Json(*value) : Json();
}

// The largest of the card's PCIe regions, which is its window of peer to peer. Linux lists begin,
// end and flags of each.
std::optional<double> window_gib(const fpga::CardFacts& card) {
    std::istringstream regions(read_whole("/sys/bus/pci/devices/" + card.address + "/resource"));
    std::optional<double> largest;
    std::string begin;
    std::string end;
    for (std::string flags; regions >> begin >> end >> flags;) {
        const std::uint64_t last = std::strtoull(end.c_str(), nullptr, 16);
        const std::uint64_t bytes = last - std::strtoull(begin.c_str(), nullptr, 16) + 1;
        if (last != 0) {
            largest = std::max(largest.value_or(0), static_cast<double>(bytes) / kGib);
        }
    }
    return largest;
}

// Returns what hinders the use of a card that can be opened, by topic, with what to do.
Json hindrances_of(const fpga::CardFacts& card, const std::optional<double>& window) {
    Json found = Json::object();
    if (!card.shell.empty() && !card.shell.starts_with(kPlatform)) {
        found["platform"] = text("the kernels are built for ", kPlatform);
    }
    if (card.ddr_gib && *card.ddr_gib < kKernelGib) {
        found["memory"] = text("the kernels want ", kKernelGib, " GiB");
    }
    if (card.has_peer_to_peer && !*card.has_peer_to_peer) {
        found["peer to peer"] = text("off: sudo xbutil configure --device ", card.address,
                                     " --p2p enable, then reboot");
    } else if (window && *window < card.ddr_gib.value_or(kKernelGib)) {
        found["window of peer to peer"] =
            text("the largest PCIe region is ", *window,
                 " GiB; it must be as large as the memory (BIOS: Above 4G Decoding)");
    }
    if (card.celsius && *card.celsius >= fpga::kHotCelsius) {
        found["temperature"] =
            "HOT, it needs more air; its runs are slower when it throttles, and csd.host_engine "
            "takes its devices off it with the same result";
    }
    return found;
}

std::string describe_card(const fpga::CardFacts& card, const Json& hindrances) {
    std::string words = card.shell.empty() ? card.address : text(card.address, ", ", card.shell);
    if (!card.obstacle.empty()) {
        return text(words, ": ", card.obstacle);
    }
    if (card.ddr_gib) {
        words += text(", ", *card.ddr_gib, " GiB of DDR");
    }
    words += !card.has_peer_to_peer   ? ", does not say whether it has peer to peer"
             : *card.has_peer_to_peer ? ", peer to peer"
                                      : ", no peer to peer";
    words += card.drive.empty() ? ", no drive known beside it: name it in csd.cards"
                                : ", beside " + card.drive;
    words += card.celsius ? text(", ", *card.celsius, " degrees") : ", reports no temperature";
    for (const auto& [topic, what] : hindrances.items()) {
        words += text("; ", topic, ": ", what.get<std::string>());
    }
    return words;
}

Json find_card(const fpga::CardFacts& card) {
    const std::optional<double> window = window_gib(card);
    const Json hindrances = card.obstacle.empty() ? hindrances_of(card, window) : Json::object();
    return {{"summary", describe_card(card, hindrances)},
            {"address", card.address},
            {"shell", card.shell},
            {"ddr_gib", or_null(card.ddr_gib)},
            {"has_peer_to_peer", or_null(card.has_peer_to_peer)},
            {"window_gib", or_null(window)},
            {"drive", card.drive.empty() ? Json() : Json(card.drive)},
            {"celsius", or_null(card.celsius)},
            {"is_hot", card.celsius ? Json(*card.celsius >= fpga::kHotCelsius) : Json()},
            {"hindrances", hindrances},
            {"obstacle", card.obstacle.empty() ? Json() : Json(card.obstacle)}};
}

}  // namespace

void add_card_findings(const config::RunSettings& run, Json& findings) {
    const fpga::Inventory found = fpga::find_cards();
    const bool is_wanted = run.csd.device == config::DeviceKind::xrt;
    std::string summary = !found.is_built         ? "not in this build, "
                          : found.version.empty() ? "no XRT, "
                                                  : text("XRT ", found.version, ", ");
    std::string driver;
    std::istringstream(read_whole("/sys/module/xocl/version")) >> driver;
    if (!found.version.empty()) {
        summary += driver.empty() ? "no driver xocl, " : text("driver xocl ", driver, ", ");
    }
    summary += found.cards.empty() ? "no cards" : text(found.cards.size(), " cards");
    if (!found.obstacle.empty()) {
        summary += text(" (", found.obstacle, ")");
    }
    summary += text("; csd.device is \"", config::name_of(run.csd.device), "\"");
    findings["xrt"] = {{"summary", summary},
                       {"is_built", found.is_built},
                       {"version", found.version},
                       {"driver", driver},
                       {"cards", found.cards.size()}};
    for (std::size_t i = 0; i < found.cards.size(); ++i) {
        findings[text("card_", i)] = find_card(found.cards[i]);
    }
    for (std::size_t i = 0; is_wanted && run.csd.cards.empty() && i < run.csd.path.size(); ++i) {
        const fpga::Pairing pairing = fpga::find_card_beside(run.csd.path[i]);
        findings[text("card_of_folder_", i)] = {
            {"summary", pairing.card.empty()
                            ? text("none: ", pairing.obstacle, "; name it in csd.cards")
                            : pairing.card},
            {"card", pairing.card.empty() ? Json() : Json(pairing.card)}};
    }
}

}  // namespace nearstep::doctor
