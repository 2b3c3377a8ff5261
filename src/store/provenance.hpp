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

// Whether a restart may remove the file: a regular file of this user's, under its only name, with
// the content of a manifest or state file of nearstep's, perhaps cut short by a crash. `beside` are
// the state files of the same rank and set, of which one may tell that another is a stripe.
bool is_removable_manifest(const std::string& path);
bool is_removable_state(const std::string& path, const std::vector<std::string>& beside);

// Removes those logs of a state file that a restart may remove: beside it and in these folders.
// After a power cut they are still gone.
void remove_logs(const std::string& state_file, const std::vector<std::string>& log_folders);

// Removes a state file and such logs of it.
void remove_state(const std::string& path, const std::vector<std::string>& log_folders);

// Throws ConfigError if there are foreign files. Call it before the rank's files are emptied.
void refuse_foreign_files(const RankFiles& files);

}  // namespace nearstep::store
