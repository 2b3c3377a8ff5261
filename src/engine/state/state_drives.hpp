// Tells how much a new state takes on the drives of a node, and how long these bear its steps.
#pragma once

#include "config/engine_settings.hpp"
#include "store/drive.hpp"
#include "store/storage_folder.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::engine {

// From this many bytes on, the root filesystem is a question.
constexpr double kMuchOfRoot = 100e9;

// The files of one drive.
struct DriveUse {
    store::Drive drive;
    std::string folder;
    double bytes = 0;
    double step_bytes = 0;  // that a step writes
    std::optional<std::size_t> free_bytes = {};
};

// Files in memory are left out. The files need not be there.
std::vector<DriveUse> drive_uses(const std::vector<store::PlannedFile>& files);

// Throws ConfigError, and says what to set, if kMuchOfRoot or more would lie on the root filesystem
// and csd.rated_tbw does not say what its drive may take.
void expect_choice_of_root(const std::vector<DriveUse>& uses, const config::CsdSettings& csd);

// One line, or an empty one without drives.
std::string describe_drives(const std::vector<DriveUse>& uses, const config::CsdSettings& csd);

}  // namespace nearstep::engine
