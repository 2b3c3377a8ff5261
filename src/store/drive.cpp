// Finds the drive of a folder through /proc and /sys, and asks an NVMe drive for its wear. Used
// when a run starts.
#include "store/drive.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "store/storage_folder.hpp"

#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

namespace nearstep::store {

namespace {

namespace fs = std::filesystem;

// NVM Express Base Specification 2.0: log pages 02h and 09h, and Identify Namespace.
constexpr std::size_t kLogBytes = 512;
constexpr std::size_t kIdentifyBytes = 4096;
constexpr std::uint8_t kGetLogPage = 0x02;
constexpr std::uint8_t kIdentify = 0x06;
constexpr std::uint32_t kHealthPage = 0x02;
constexpr std::uint32_t kGroupPage = 0x09;
constexpr std::size_t kUsedPercentAt = 5;
constexpr std::size_t kHealthWrittenAt = 48;  // in thousands of 512 bytes
constexpr std::size_t kGroupEstimateAt = 32;  // in 1e9 bytes
constexpr std::size_t kGroupOfNamespaceAt = 102;
constexpr double kWrittenUnit = 512e3;
constexpr double kEstimateUnit = 1e9;
constexpr std::uint32_t kEveryNamespace = 0xFFFFFFFF;
constexpr int kLeastPercent = 5;
constexpr int kMostLinks = 8;  // of device-mapper volumes on each other

// A number of `bytes` bytes, the lowest first.
double number_at(std::span<const std::byte> page, std::size_t at, std::size_t bytes) {
    double number = 0;
    for (std::size_t i = bytes; i-- > 0;) {
        number = number * 256 + std::to_integer<int>(page[at + i]);
    }
    return number;
}

// An admin command that reads into `page`. Empty if the drive or the system refuses it.
std::vector<std::byte> ask(int drive, nvme_admin_cmd command, std::size_t bytes) {
    std::vector<std::byte> page(bytes);
    command.addr = reinterpret_cast<std::uintptr_t>(page.data());
    command.data_len = static_cast<std::uint32_t>(bytes);
    return ::ioctl(drive, NVME_IOCTL_ADMIN_CMD, &command) == 0 ? page : std::vector<std::byte>();
}

std::vector<std::byte> ask_log(int drive, std::uint32_t page, std::uint32_t group) {
    nvme_admin_cmd command{};
    command.opcode = kGetLogPage;
    command.nsid = kEveryNamespace;
    command.cdw10 = page | (kLogBytes / 4 - 1) << 16U;
    command.cdw11 = group << 16U;
    return ask(drive, command, kLogBytes);
}

DriveLife life_of(const std::string& device) {
    const Descriptor drive(::open(device.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    const int number = drive ? ::ioctl(drive.get(), NVME_IOCTL_ID) : -1;
    if (number <= 0) {  // no NVMe drive, or not for this user
        return {};
    }
    const std::vector<std::byte> health = ask_log(drive.get(), kHealthPage, 0);
    nvme_admin_cmd identify{};
    identify.opcode = kIdentify;
    identify.nsid = static_cast<std::uint32_t>(number);
    const std::vector<std::byte> about = ask(drive.get(), identify, kIdentifyBytes);
    const auto group =
        about.empty() ? 0 : static_cast<std::uint32_t>(number_at(about, kGroupOfNamespaceAt, 2));
    return health.empty() ? DriveLife()
                          : life_of_logs(health, group > 0 ? ask_log(drive.get(), kGroupPage, group)
                                                           : std::vector<std::byte>());
}

// The mounted source of the filesystem with that device number, as /dev/nvme0n1p2; empty: none is
// listed.
std::string source_of(dev_t filesystem, const std::string& root) {
    std::ifstream table(root + "/proc/self/mountinfo");
    const std::string wanted = text(major(filesystem), ":", minor(filesystem));
    for (std::string line; std::getline(table, line);) {
        std::istringstream words(line);
        std::string word;
        words >> word >> word >> word;
        if (word != wanted) {
            continue;
        }
        while (words >> word && word != "-") {
        }
        words >> word >> word;  // its type, its source
        return word;
    }
    return "";
}

// The folder of /sys/block of the drive that a device number lies on: a partition's disk, and what
// is below a volume of one disk.
fs::path block_of(dev_t device, const std::string& root) {
    std::error_code failure;
    fs::path at =
        fs::canonical(text(root, "/sys/dev/block/", major(device), ":", minor(device)), failure);
    for (int link = 0; !failure && link < kMostLinks; ++link) {
        if (fs::exists(at / "partition", failure)) {
            at = at.parent_path();
        }
        std::vector<fs::path> below;
        for (const fs::directory_entry& slave : fs::directory_iterator(at / "slaves", failure)) {
            below.push_back(slave.path());
        }
        failure.clear();
        if (below.size() != 1) {
            return at;
        }
        at = fs::canonical(below.front(), failure);
    }
    return failure ? fs::path() : at;
}

}  // namespace

DriveLife life_of_logs(std::span<const std::byte> health, std::span<const std::byte> group) {
    constexpr std::size_t kNumberBytes = 16;
    if (health.size() < kLogBytes) {
        return {};
    }
    DriveLife life{.written_bytes =
                       kWrittenUnit * number_at(health, kHealthWrittenAt, kNumberBytes)};
    const double rated = group.size() < kLogBytes
                             ? 0
                             : kEstimateUnit * number_at(group, kGroupEstimateAt, kNumberBytes);
    const auto used = std::to_integer<int>(health[kUsedPercentAt]);
    if (rated > 0) {
        life.rated_bytes = rated;
    } else if (used >= kLeastPercent) {
        life.rated_bytes = *life.written_bytes * 100 / used;
    }
    return life;
}

Drive drive_of(const std::string& folder, const std::string& root) {
    struct stat facts {};
    struct stat of_root {};
    if (::stat(nearest_present(folder).c_str(), &facts) != 0) {
        return {};
    }
    const std::string source = source_of(facts.st_dev, root);
    Drive drive{.name = source};
    if (::stat((root + "/").c_str(), &of_root) == 0) {
        // Subvolumes of one filesystem have numbers of their own and one source.
        drive.has_root = facts.st_dev == of_root.st_dev ||
                         (source.starts_with('/') && source == source_of(of_root.st_dev, root));
    }
    dev_t device = facts.st_dev;
    struct stat of_source {};
    if (major(device) == 0 && source.starts_with('/') &&
        ::stat((root + source).c_str(), &of_source) == 0) {
        device = of_source.st_rdev;
    }
    const fs::path block = block_of(device, root);
    if (!block.empty()) {
        drive.name = text("/dev/", block.filename().string());
        drive.life = life_of(root + drive.name);
    }
    return drive;
}

}  // namespace nearstep::store
