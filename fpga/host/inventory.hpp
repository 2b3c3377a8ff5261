// The cards of this machine and their state.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nearstep::fpga {

// A card as XRT reports it. Unknown values are empty or absent.
struct CardFacts {
    std::string address;
    std::string shell;
    std::optional<bool> has_peer_to_peer{};
    std::optional<double> ddr_gib{};
    std::optional<double> celsius{};  // of the FPGA
    std::string drive;                // such as "nvme0", behind the same PCIe switch
    std::string obstacle;             // why the card cannot be opened; empty: it can
};

struct Inventory {
    bool is_built = false;  // built with XRT
    std::string version;    // of XRT; empty: it was not found
    std::vector<CardFacts> cards;
    std::string obstacle;  // why the search failed; empty: it did not
};

// Opens every card. Does not throw if the machine lacks something.
Inventory find_cards();

// Adds to `cards` the drives beside them, and the cards that Linux shows and that are not in the
// list, with this obstacle.
void add_pci_cards(const std::string& obstacle, std::vector<CardFacts>& cards);

// A card above this is reported as hot. The value is a choice: FPGAs like a SmartSSD's (Kintex
// UltraScale+, extended grade) are specified up to 100 degrees, and a SmartSSD has no fan.
constexpr double kHotCelsius = 85;

}  // namespace nearstep::fpga
