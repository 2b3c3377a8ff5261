// Cards and drives that share a PCIe switch, in directory trees like sysfs.
#include "fpga/host/pairing.hpp"

#include "support/test.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

namespace nearstep::fpga {
namespace {

// A sysfs with a root port, a switch per SmartSSD behind it, and a plain drive.
class SysfsTest : public testing::Test {
protected:
    void make_function(const std::string& path, const std::string& vendor,
                       const std::string& device) {
        const fs::path place = sys() / "devices" / path;
        fs::create_directories(place);
        std::ofstream(place / "class") << "0x060400\n";
        std::ofstream(place / "vendor") << vendor << "\n";
        std::ofstream(place / "device") << device << "\n";
        fs::create_directories(sys() / "bus/pci/devices");
        fs::create_directory_symlink(place, sys() / "bus/pci/devices" / place.filename());
    }

    // A SmartSSD behind an upstream port: drive nvme<index> and its card.
    void make_smart_ssd(const std::string& upstream, int index) {
        const std::string bus = std::to_string(index);
        make_function(upstream, "0x144d", "0xa826");
        make_function(upstream + "/0000:" + bus + "0:00.0", "0x144d", "0xa826");
        make_function(upstream + "/0000:" + bus + "0:01.0", "0x144d", "0xa826");
        make_drive(upstream + "/0000:" + bus + "0:00.0/0000:" + bus + "1:00.0", index);
        make_function(upstream + "/0000:" + bus + "0:01.0/0000:" + bus + "2:00.0", "0x10ee",
                      "0x6987");
        make_function(upstream + "/0000:" + bus + "0:01.0/0000:" + bus + "2:00.1", "0x10ee",
                      "0x6988");
    }

    void make_drive(const std::string& path, int index) {
        make_function(path, "0x144d", "0xa825");
        const std::string name = "nvme" + std::to_string(index);
        const fs::path block = sys() / "devices" / path / "nvme" / name / (name + "n1");
        fs::create_directories(block);
        fs::create_directories(sys() / "class/nvme" / name);
        fs::create_directory_symlink(sys() / "devices" / path,
                                     sys() / "class/nvme" / name / "device");
    }

    // Registers this drive as the one that holds the scratch folder.
    void mount(int index) {
        struct stat facts {};
        ASSERT_EQ(::stat(folder_.path().c_str(), &facts), 0);
        const fs::path link =
            sys() / "dev/block" /
            (std::to_string(major(facts.st_dev)) + ":" + std::to_string(minor(facts.st_dev)));
        fs::create_directories(link.parent_path());
        fs::remove(link);
        const std::string name = "nvme" + std::to_string(index);
        const fs::path device = fs::canonical(sys() / "class/nvme" / name / "device");
        fs::create_directory_symlink(device / "nvme" / name / (name + "n1"), link);
    }

    fs::path sys() const { return folder_.path() + "/sys"; }
    std::string state() const { return folder_.path() + "/not/there/yet"; }
    Pairing found() const { return find_card_beside(state(), sys()); }

    ScratchFolder folder_;
};

constexpr const char* kRootPort = "pci0000:00/0000:00:01.0";

TEST_F(SysfsTest, FindsTheCardBehindTheSwitchOfTheDrive) {
    make_function(kRootPort, "0x8086", "0x2030");
    make_smart_ssd(std::string(kRootPort) + "/0000:01:00.0", 1);
    make_smart_ssd(std::string(kRootPort) + "/0000:02:00.0", 2);
    const std::vector<PciCard> cards = find_pci_cards(sys());
    ASSERT_EQ(cards.size(), 2U);
    EXPECT_EQ(cards[0].address, "0000:12:00.1");
    EXPECT_EQ(cards[0].drive, "nvme1");
    EXPECT_EQ(cards[1].drive, "nvme2");
    for (const int drive : {1, 2}) {
        mount(drive);
        EXPECT_EQ(found().card, "0000:" + std::to_string(drive) + "2:00.1") << found().obstacle;
    }
}

TEST_F(SysfsTest, PairsNothingThatSharesNoMoreThanTheRoot) {
    make_function(kRootPort, "0x8086", "0x2030");
    make_smart_ssd(std::string(kRootPort) + "/0000:01:00.0", 1);
    make_drive(std::string(kRootPort) + "/0000:05:00.0", 5);  // a plain drive
    mount(5);
    EXPECT_EQ(found().card, "");
    EXPECT_THAT(found().obstacle, HasSubstr("nvme5"));
}

TEST_F(SysfsTest, SaysWhenTheFolderLiesOnNoDrive) {
    EXPECT_THAT(found().obstacle, HasSubstr("no drive"));
    EXPECT_TRUE(find_pci_cards(sys()).empty());
}

TEST_F(SysfsTest, SaysWhenTheChoiceIsNotClear) {
    make_function(kRootPort, "0x8086", "0x2030");
    const std::string upstream = std::string(kRootPort) + "/0000:01:00.0";
    make_smart_ssd(upstream, 1);
    make_function(upstream + "/0000:10:02.0", "0x144d", "0xa826");
    make_function(upstream + "/0000:10:02.0/0000:13:00.1", "0x10ee", "0x6988");
    mount(1);
    EXPECT_EQ(found().card, "");
    EXPECT_THAT(found().obstacle, HasSubstr("several"));
}

}  // namespace
}  // namespace nearstep::fpga
