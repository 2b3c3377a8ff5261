// Reads the facts that Linux and a drive tell of the drive that a folder lies on.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace nearstep::store {

// Bytes that a drive has taken in its life, and those that its maker rates it for. nullopt: the
// drive does not tell, or only tells root.
struct DriveLife {
    std::optional<double> rated_bytes = {};
    std::optional<double> written_bytes = {};
};

// Reads NVMe's log pages "SMART / Health Information" (2) and "Endurance Group Information" (9), of
// 512 bytes each; `group` may be empty. Without a rating there, the share of its life that a drive
// says is used, from 5 % on, and what was written give one.
DriveLife life_of_logs(std::span<const std::byte> health, std::span<const std::byte> group);

struct Drive {
    std::string name;       // "/dev/nvme0n1", or the filesystem's source if no drive is seen
    bool has_root = false;  // the root filesystem is the folder's
    DriveLife life = {};
};

// The drive of the folder, or of its closest existing parent. `root`: the folder that holds /proc,
// /sys and /dev; tests have one of their own.
Drive drive_of(const std::string& folder, const std::string& root = "");

}  // namespace nearstep::store
