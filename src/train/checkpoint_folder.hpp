// What a run must know of its checkpoint folder before it relies on it: that all hosts share it,
// and how long a checkpoint takes there.
#pragma once

#include "config/run.hpp"
#include "mpi/communicator.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace nearstep::train {

// The checkpoint folder of a run, made if it was not there; what this made is gone with it if it is
// still empty, so that a run refused at its start leaves no folder behind.
class SharedFolder {
public:
    // Makes a file in it, for a moment, by which all ranks know it. Collective. Throws ConfigError
    // if it cannot be written, or is another folder on some host.
    SharedFolder(const mpi::Communicator& world, std::string folder);
    SharedFolder(const SharedFolder&) = delete;
    SharedFolder& operator=(const SharedFolder&) = delete;
    ~SharedFolder();

private:
    std::string make_token(const mpi::Communicator& world);
    void remove_if_empty();

    std::string folder_;
    bool is_made_here_ = false;
};

// How long a checkpoint takes, by a part of it that was read and written.
struct CheckpointTime {
    double seconds = 0;
    double bytes = 0;         // of all ranks
    double probed_bytes = 0;  // likewise: the part
};

// The lines that say how long a run needs to stop beside the notice that it has, in seconds; 0: it
// is not known. `time`: only with csd.durability "checkpoint".
std::vector<std::string> describe_notice(const config::Run& run, const CheckpointTime& time,
                                         int notice_s);

}  // namespace nearstep::train
