// What a host must have before a run, looked at without the other hosts and before any rank starts.
#pragma once

#include "config/hosts.hpp"
#include "config/run.hpp"

#include <cstdint>
#include <string>

namespace nearstep::train {

struct HostFacts {
    // What must be the same on all hosts.
    std::string commit;
    std::uint64_t program_digest = 0;  // XXH3 of this program's file
    std::uint64_t data_digest = 0;     // XXH3 of all text of data.train, then of data.valid

    std::int64_t time_us = 0;  // since 1970, at the end of the check
    std::string machine;       // the same on hosts that share cores; empty if it cannot be told
    int cores = 1;             // that this process may use
};

// What a run that was left with steps to do means to the next one: it is in the way, or the next
// one goes on from it, or begins anew in its place.
enum class Unfinished { refused, taken };

// Checks for the ranks of `host`, out of `ranks`, that the text is there, that the folders of
// csd.path can be written and have space for the state, that no other process uses it, that
// they and (on the host of rank 0) checkpoint.path hold no unfinished run that is refused, that the
// GPUs which model.device asks for are there, and that hosts.interface is up. `granted`: as
// config::places_of_devices takes it. Throws ConfigError.
HostFacts check_host(const config::Run& run, int ranks, const config::HostPart& host,
                     const std::string& granted, Unfinished unfinished);

}  // namespace nearstep::train
