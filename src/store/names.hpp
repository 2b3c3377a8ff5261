// The names of state files and manifests. A name that is read from a file is compared with these
// and never used as a path.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::store {

// State files have two sets of names, so that one state can be written beside another.
constexpr int kSets = 2;

// "rank-3.device-0.state", and "rank-3.device-0.set-1.state" in the other set.
std::string state_file_name(int rank, int device, int set);

// "rank-3.manifest", and "rank-3.set-1.manifest" in the other set.
std::string manifest_name(int rank, int set);

// "rank-3.program-0", and "rank-3.set-1.program-0" in the other set: see store/program_state.hpp.
std::string program_state_name(int rank, int set, int place);
// The paths of all these of a rank that may lie in the folders.
std::vector<std::string> program_state_files(const std::vector<std::string>& folders, int rank);

// The parts of a state file's name.
struct RankFileName {
    int rank = 0;
    int device = 0;  // of a state file
    int set = 0;
};

// nullopt for the name of any other file.
std::optional<RankFileName> parse_state_file_name(const std::string& name);
std::optional<RankFileName> parse_manifest_name(const std::string& name);

// The path or name of a log beside a state file, by its number: "rank-3.device-0.state.log-0".
std::string log_of_state(const std::string& state_file, std::size_t number);
// Returns the logs of a state file that are there: beside it and in these folders.
std::vector<std::string> logs_of_state(const std::string& state_file,
                                       const std::vector<std::string>& log_folders);

// True for the name of a state file, one of its logs, a manifest or a program's state.
bool is_state_name(const std::string& name);

}  // namespace nearstep::store
