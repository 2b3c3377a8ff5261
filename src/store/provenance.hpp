// Tells from a file's content, not its name, whether nearstep made it.
#pragma once

#include <string>
#include <vector>

namespace nearstep::store {

// The files of one rank in csd.path.
struct RankFiles {
    std::vector<std::string> states;  // in the order of its devices
    std::string manifest;
};

// The rank's files whose content nearstep did not write. A state file may be a stripe without a
// header of its own. Such a file counts as ours if another file of the rank, or its manifest, is
// recognised.
std::vector<std::string> foreign_files(const RankFiles& files);

// Throws ConfigError if there are such files. Call it before the rank's files are emptied.
void refuse_foreign_files(const RankFiles& files);

}  // namespace nearstep::store
