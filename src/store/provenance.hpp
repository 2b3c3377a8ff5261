// Whether a file was made by nearstep, told by what it holds and not by its name.
#pragma once

#include <string>
#include <vector>

namespace nearstep::store {

// The files of one rank in csd.path.
struct RankFiles {
    std::vector<std::string> states;  // in the order of its devices
    std::string manifest;
};

// Those of the rank's files that hold something that nearstep has not written. A state file may be
// a stripe of state without a header of its own: it counts as ours beside a file or manifest of
// the rank that does have one.
std::vector<std::string> foreign_files(const RankFiles& files);

// Throws ConfigError if there are such files: before the rank's files are emptied.
void refuse_foreign_files(const RankFiles& files);

}  // namespace nearstep::store
