// Which card and which drive are one device: they share the PCIe switch inside it.
#pragma once

#include <string>
#include <vector>

namespace nearstep::fpga {

// A card as the kernel shows it, whether or not XRT is there.
struct PciCard {
    std::string address;  // "0000:04:00.1"
    std::string drive;    // "nvme0" behind the same switch; empty: none
};

struct Pairing {
    std::string card;      // PCI address; empty: there is none
    std::string obstacle;  // why, as a phrase
};

// `sys`: where sysfs is mounted; tests have trees of their own.
std::vector<PciCard> find_pci_cards(const std::string& sys = "/sys");

// The card behind the switch of the drive that holds the folder, or the nearest one of its parents
// that is there.
Pairing find_card_beside(const std::string& folder, const std::string& sys = "/sys");

}  // namespace nearstep::fpga
