// Finds the cards of a host and what hinders their use. Called by doctor.cpp.
#include "base/error.hpp"
#include "doctor/doctor.hpp"
#include "fpga/host/inventory.hpp"
#include "fpga/host/pairing.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <optional>
#include <string>

namespace nearstep::doctor {

namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json or_null(const std::optional<T>& value) {
    return value ? Json(*value) : Json();
}

std::string describe_card(const fpga::CardFacts& card) {
    std::string words = card.shell.empty() ? card.address : text(card.address, ", ", card.shell);
    if (!card.obstacle.empty()) {
        return text(words, ": ", card.obstacle);
    }
    if (card.ddr_gib) {
        words += text(", ", *card.ddr_gib, " GiB of DDR");
    }
    words += !card.has_peer_to_peer   ? ", does not say whether it has peer to peer"
             : *card.has_peer_to_peer ? ", peer to peer"
                                      : ", no peer to peer: sudo xbutil configure --device " +
                                            card.address + " --p2p enable";
    words += card.drive.empty() ? ", no drive known beside it: name it in csd.cards"
                                : ", beside " + card.drive;
    if (!card.celsius) {
        return words + ", reports no temperature";
    }
    words += text(", ", *card.celsius, " degrees");
    return *card.celsius < fpga::kHotCelsius
               ? words
               : words +
                     ": HOT, it needs more air; its runs are slower when it throttles, and "
                     "csd.host_engine takes its devices off it with the same result";
}

Json find_card(const fpga::CardFacts& card) {
    return {{"summary", describe_card(card)},
            {"address", card.address},
            {"shell", card.shell},
            {"ddr_gib", or_null(card.ddr_gib)},
            {"has_peer_to_peer", or_null(card.has_peer_to_peer)},
            {"drive", card.drive.empty() ? Json() : Json(card.drive)},
            {"celsius", or_null(card.celsius)},
            {"is_hot", card.celsius ? Json(*card.celsius >= fpga::kHotCelsius) : Json()},
            {"obstacle", card.obstacle.empty() ? Json() : Json(card.obstacle)}};
}

}  // namespace

void add_card_findings(const config::RunSettings& run, Json& findings) {
    const fpga::Inventory found = fpga::find_cards();
    const bool is_wanted = run.csd.device == config::DeviceKind::xrt;
    std::string summary = !found.is_built         ? "not in this build, "
                          : found.version.empty() ? "no XRT, "
                                                  : text("XRT ", found.version, ", ");
    summary += found.cards.empty() ? "no cards" : text(found.cards.size(), " cards");
    if (!found.obstacle.empty()) {
        summary += text(" (", found.obstacle, ")");
    }
    summary += text("; csd.device is \"", config::name_of(run.csd.device), "\"");
    findings["xrt"] = {{"summary", summary},
                       {"is_built", found.is_built},
                       {"version", found.version},
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
