// Finds cards and the drives beside them in sysfs. Used by engine and doctor.
#include "fpga/host/pairing.hpp"

#include "fpga/host/inventory.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace nearstep::fpga {

namespace {

namespace fs = std::filesystem;

// PCI ids of a SmartSSD's user function, from the list in XRT's driver.
constexpr std::string_view kVendor = "0x10ee";
constexpr std::string_view kUserFunction = "0x6988";

std::string first_word(const fs::path& file) {
    std::string word;
    std::ifstream(file) >> word;
    return word;
}

fs::path resolved(const fs::path& link) {
    std::error_code none;
    fs::path target = fs::canonical(link, none);
    return none ? fs::path() : target;
}

// The PCIe switch above a device: the device sits below one of its downstream ports. Empty if the
// device is connected directly to the root complex.
fs::path switch_of(const fs::path& device) {
    const fs::path port = device.parent_path();
    const fs::path upstream = port.parent_path();
    return fs::exists(upstream / "class") ? upstream : fs::path();
}

// "nvme0" of "nvme0n1p1"; empty for other drives.
std::string controller_of(const std::string& block) {
    constexpr std::string_view kPrefix = "nvme";
    if (block.rfind(kPrefix, 0) != 0) {
        return "";
    }
    const auto end = std::find_if_not(block.begin() + kPrefix.size(), block.end(), [](char letter) {
        return std::isdigit(static_cast<unsigned char>(letter)) != 0;
    });
    return {block.begin(), end};
}

fs::path drive_path(const std::string& controller, const std::string& sys) {
    return resolved(fs::path(sys) / "class/nvme" / controller / "device");
}

// The name of the block device that holds the folder; empty if there is none.
std::string block_of(const std::string& folder, const std::string& sys) {
    fs::path there = fs::absolute(folder);
    while (!fs::exists(there) && there.has_relative_path()) {
        there = there.parent_path();
    }
    struct stat facts {};
    if (::stat(there.c_str(), &facts) != 0) {
        return "";
    }
    const std::string number =
        std::to_string(major(facts.st_dev)) + ":" + std::to_string(minor(facts.st_dev));
    return resolved(fs::path(sys) / "dev/block" / number).filename();
}

}  // namespace

std::vector<PciCard> find_pci_cards(const std::string& sys) {
    std::vector<PciCard> cards;
    std::error_code none;
    for (const fs::directory_entry& entry :
         fs::directory_iterator(fs::path(sys) / "bus/pci/devices", none)) {
        if (first_word(entry.path() / "vendor") != kVendor ||
            first_word(entry.path() / "device") != kUserFunction) {
            continue;
        }
        PciCard card{entry.path().filename(), ""};
        const fs::path above = switch_of(resolved(entry.path()));
        for (const fs::directory_entry& drive :
             fs::directory_iterator(fs::path(sys) / "class/nvme", none)) {
            const std::string name = drive.path().filename();
            if (!above.empty() && switch_of(drive_path(name, sys)) == above) {
                card.drive = name;
            }
        }
        cards.push_back(card);
    }
    std::ranges::sort(cards, {}, &PciCard::address);
    return cards;
}

void add_pci_cards(const std::string& obstacle, std::vector<CardFacts>& cards) {
    for (const PciCard& shown : find_pci_cards()) {
        const auto same = std::ranges::find_if(
            cards, [&](const CardFacts& card) { return card.address == shown.address; });
        if (same != cards.end()) {
            same->drive = shown.drive;
        } else {
            CardFacts& facts = cards.emplace_back();
            facts.address = shown.address;
            facts.drive = shown.drive;
            facts.obstacle = obstacle;
        }
    }
}

Pairing find_card_beside(const std::string& folder, const std::string& sys) {
    const std::string block = block_of(folder, sys);
    const std::string controller = controller_of(block);
    if (controller.empty()) {
        return {"", block.empty() ? "it lies on no drive that the kernel names"
                                  : "it lies on " + block + ", which is no NVMe drive"};
    }
    std::vector<std::string> beside;
    for (const PciCard& card : find_pci_cards(sys)) {
        if (card.drive == controller) {
            beside.push_back(card.address);
        }
    }
    if (beside.size() == 1) {
        return {beside.front(), ""};
    }
    return {"", beside.empty() ? "no card shares a PCIe switch with its drive " + controller
                               : "several cards share a PCIe switch with its drive " + controller};
}

}  // namespace nearstep::fpga
