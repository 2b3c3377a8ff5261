// Replaces inventory_xrt.cpp in builds without XRT. Lists only what Linux shows.
#include "fpga/host/inventory.hpp"
#include "fpga/host/pairing.hpp"

namespace nearstep::fpga {

Inventory find_cards() {
    Inventory found;
    found.obstacle = "this program was built without XRT";
    for (const PciCard& card : find_pci_cards()) {
        CardFacts facts;
        facts.address = card.address;
        facts.drive = card.drive;
        facts.obstacle = found.obstacle;
        found.cards.push_back(facts);
    }
    return found;
}

}  // namespace nearstep::fpga
