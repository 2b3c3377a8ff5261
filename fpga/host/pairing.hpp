// Finds the card and the drive of one device: they share its internal PCIe switch.
#pragma once

#include <string>
#include <vector>

namespace nearstep::fpga {

// A card as Linux lists it, with or without XRT.
struct PciCard {
    std::string address;  // "0000:04:00.1"
    std::string drive;    // such as "nvme0", behind the same switch; empty: none
};

struct Pairing {
    std::string card;      // PCI address; empty: no card found
    std::string obstacle;  // the reason, as a phrase
};

// `sys` is where sysfs is mounted; tests use their own trees.
std::vector<PciCard> find_pci_cards(const std::string& sys = "/sys");

// The card that shares a PCIe switch with the folder's drive. If the folder does not exist, its
// closest existing parent counts.
Pairing find_card_beside(const std::string& folder, const std::string& sys = "/sys");

}  // namespace nearstep::fpga
