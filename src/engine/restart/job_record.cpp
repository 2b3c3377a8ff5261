// Records a Slurm job's runs in the user's home. Used when an engine begins and by restarts.
#include "engine/restart/job_record.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/plain_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <sstream>
#include <system_error>

namespace nearstep::engine {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = std::size_t{1} << 20U;

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

bool is_name(const std::string& word) {
    return !word.empty() && std::ranges::all_of(word, [](char letter) {
        return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '-' ||
               letter == '.' || letter == '_';
    });
}

// Returns the record's path; empty outside Slurm and without a home folder.
fs::path record_path() {
    const std::string job = variable("SLURM_JOB_ID");
    const std::string cluster = variable("SLURM_CLUSTER_NAME");
    const std::string home = variable("HOME");
    const std::string state = variable("XDG_STATE_HOME");
    if (!is_name(job) || (home.empty() && state.empty())) {
        return {};
    }
    return fs::path(state.empty() ? home + "/.local/state" : state) / "nearstep" /
           text("slurm-", is_name(cluster) ? cluster + "-" : "", job);
}

std::string digest_of(const std::string& folder) {
    const std::string whole = fs::absolute(folder).lexically_normal().string();
    return to_hex(xxh3(std::as_bytes(std::span(whole))));
}

bool has_line(const fs::path& record, const std::string& line) {
    return start_of_plain(record.string(), kMostBytes).find(line) != std::string::npos;
}

}  // namespace

bool is_restarted_job() {
    const std::string count = variable("SLURM_RESTART_COUNT");
    return !count.empty() && count != "0";
}

JobRuns runs_of_job(const std::string& folder) {
    if (!is_restarted_job()) {
        return {};
    }
    const fs::path record = record_path();
    if (record.empty() || !is_own_plain(record.string())) {
        return {.may_have_begun = true};
    }
    JobRuns runs;
    const std::string digest = digest_of(folder);
    std::istringstream lines(start_of_plain(record.string(), kMostBytes));
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string of_folder;
        std::string id;
        words >> of_folder >> id;
        if (of_folder == digest) {
            runs.may_have_begun = true;
            if (!id.empty()) {  // version 0.2.0 did not note it
                runs.ids.push_back(id);
            }
        }
    }
    return runs;
}

void note_begun(const std::string& folder, const std::string& run) {
    const fs::path record = record_path();
    const std::string line = text(digest_of(folder), ' ', run, '\n');
    if (record.empty() || has_line(record, line)) {
        return;
    }
    std::error_code ignored;
    // A record that begins later would not have what the first start began.
    const int make = is_restarted_job() ? 0 : O_CREAT;
    if (make != 0) {
        fs::create_directories(record.parent_path(), ignored);
    }
    const PlainFile opened =
        open_plain(record.string(), O_WRONLY | O_APPEND | make, S_IRUSR | S_IWUSR);
    const bool is_noted =
        opened.file &&
        ::write(opened.file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
        ::fdatasync(opened.file.get()) == 0;
    if (!is_noted && is_own_plain(record.string())) {
        ::unlink(record.c_str());
    }
}

}  // namespace nearstep::engine
