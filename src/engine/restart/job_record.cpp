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
#include <system_error>

namespace nearstep::engine {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostBytes = std::size_t{1} << 20U;

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
}

bool is_restarted() {
    const std::string count = variable("SLURM_RESTART_COUNT");
    return !count.empty() && count != "0";
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

std::string line_of(const std::string& folder) {
    const std::string whole = fs::absolute(folder).lexically_normal().string();
    return to_hex(xxh3(std::as_bytes(std::span(whole)))) + "\n";
}

bool has_line(const fs::path& record, const std::string& line) {
    return start_of_plain(record.string(), kMostBytes).find(line) != std::string::npos;
}

}  // namespace

bool may_have_begun(const std::string& folder) {
    if (!is_restarted()) {
        return false;
    }
    const fs::path record = record_path();
    return record.empty() || !is_own_plain(record.string()) || has_line(record, line_of(folder));
}

void note_begun(const std::string& folder) {
    const fs::path record = record_path();
    const std::string line = line_of(folder);
    if (record.empty() || has_line(record, line)) {
        return;
    }
    std::error_code ignored;
    // A record that begins later would not have what the first start began.
    const int make = is_restarted() ? 0 : O_CREAT;
    if (make != 0) {
        fs::create_directories(record.parent_path(), ignored);
    }
    const PlainFile opened =
        open_plain(record.string(), O_WRONLY | O_APPEND | make, S_IRUSR | S_IWUSR);
    if (opened.file &&
        ::write(opened.file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
        ::fdatasync(opened.file.get());
    }
}

}  // namespace nearstep::engine
