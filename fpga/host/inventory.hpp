// The cards of this machine and what state they are in.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nearstep::fpga {

// What XRT says of a card; empty or absent: it does not say.
struct CardFacts {
    std::string address;
    std::string shell;
    std::optional<bool> has_peer_to_peer{};
    std::optional<double> ddr_gib{};
    std::optional<double> celsius{};  // of the FPGA
    std::string drive;                // "nvme0" behind the same PCIe switch
    std::string obstacle;             // why the card cannot be opened
};

struct Inventory {
    bool is_built = false;  // with XRT
    std::string version;    // of XRT
    std::vector<CardFacts> cards;
    std::string obstacle;  // why none could be looked for; empty: one could
};

// Never throws for what the machine lacks. Opens every card.
Inventory find_cards();

// A card above this is called hot. A choice: FPGAs of the kind in a SmartSSD (Kintex UltraScale+,
// extended grade) are specified up to 100 degrees, and a SmartSSD has no fan of its own.
constexpr double kHotCelsius = 85;

}  // namespace nearstep::fpga
