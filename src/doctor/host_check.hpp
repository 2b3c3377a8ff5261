// Checks whether a run may begin on one host, without the other hosts: before any rank starts, and
// for nearstep doctor.
#pragma once

#include "config/hosts.hpp"
#include "config/run_settings.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace nearstep::doctor {

struct HostCheck {
    // Must be the same on all hosts.
    std::string commit;
    std::uint64_t program_digest = 0;  // XXH3 of this program's file
    // XXH3 of all text of data.train, then of data.valid, or of a script; none: this host's ranks
    // read none
    std::optional<std::uint64_t> data_digest;
    std::string package = {};  // digest of the Python package, for a script

    std::int64_t time_us = 0;  // since 1970, at the end of the check
    std::string machine;       // the same on hosts that share cores; empty: unknown
    int cores = 1;             // that this process may use
    std::string note = {};     // what was not checked; empty: nothing
    std::string storage = {};  // what the run's state takes here
};

// Whether an unfinished run in the folders stops the next run, or the next one resumes or replaces
// it.
enum class Unfinished { refused, taken };

// For the ranks of `host`, out of `ranks`: checks that the text exists, that the folders of
// csd.path are writable, have space for the state and are not in use, that they and (on rank 0's
// host) checkpoint.path hold no unfinished run if that is refused, that the GPUs of model.device
// exist, that hosts.interface is up, and that the temporary folder has space. `granted`: see
// config::places_of_devices. Throws ConfigError.
HostCheck check_host(const config::RunSettings& run, int ranks, const config::HostPart& host,
                     const std::string& granted, Unfinished unfinished);

// A script that runs in place of a config, and the Python that runs it.
struct Script {
    std::string path;
    std::string python;
};

// Checks the host for a script, whose folders and devices are not known before it runs: that the
// script exists, that its Python has the package and PyTorch, that hosts.interface is up, and that
// the temporary folder has space.
HostCheck check_host_of_script(const config::RunSettings& run, int ranks,
                               const config::HostPart& host, const Script& script);

}  // namespace nearstep::doctor
