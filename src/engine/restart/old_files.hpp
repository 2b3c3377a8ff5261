// The state files and manifests that a start leaves behind: checks, removes and describes them.
#pragma once

#include "engine/restart/start.hpp"
#include "mpi/communicator.hpp"

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::engine {

// Removes the files that the decision abandoned: first the manifests of other states go, then the
// files that they name. The first rank of each node does it.
class OldFiles {
public:
    // Both outlive this. Collective.
    OldFiles(const mpi::Communicator& world, const Start& start);

    // Throws ConfigError on all ranks if a manifest that has to go is not this user's or not
    // nearstep's, or one of its state files is another run's. Collective.
    void check() const;
    // `state`: the id of the state that the run has now. Collective.
    void remove(const std::string& state) const;
    // Sentences about what was removed. Not collective.
    std::vector<std::string> describe() const;

private:
    void check_files_of(const FoundManifest& one) const;
    std::vector<std::string> removable_files(const FoundManifest& one) const;
    bool is_left(const FoundManifest& one) const {
        return current_.count({one.node, one.path}) == 0;
    }
    bool names(const std::string& path, const std::string& state) const;
    bool is_seen_twice(const FoundManifest& one) const;

    const mpi::Communicator& world_;
    const Findings& found_;
    int set_;
    std::string memory_;  // folder
    std::vector<std::string> log_folders_;
    std::vector<std::string> others_;  // of this rank, in the other set
    int view_;
    bool is_first_;                                  // of the node
    std::vector<const FoundManifest*> mine_;         // to remove, if they are left
    std::set<std::pair<int, std::string>> current_;  // view and path of this run's manifests
    std::set<std::pair<std::string, std::string>>
        states_;                   // path and state of those that were found
    std::set<std::string> files_;  // state files of this run
    std::string partial_;          // unfinished manifest of a killed rank in the other set
};

}  // namespace nearstep::engine
