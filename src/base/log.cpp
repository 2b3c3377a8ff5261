// Writes log lines to stderr. Used by csd, store, checkpoint, train/compare.cpp and fpga/host.
#include "base/log.hpp"

#include "base/number_list.hpp"
#include "base/wording.hpp"

#include <cstdio>
#include <map>
#include <mutex>
#include <set>

namespace nearstep {

namespace {

// Shared by all threads of the process.
struct Log {
    std::mutex mutex;
    bool is_silent = false;
    std::map<std::string, std::size_t, std::less<>> written;  // lines of each event
    std::set<std::string, std::less<>> silent;
};

Log& own_log() {
    static Log log;
    return log;
}

std::string line_of(std::string_view event, const std::vector<LogField>& fields) {
    std::string line = "nearstep event=" + std::string(event);
    for (const auto& [key, value] : fields) {
        const bool is_plain =
            !value.empty() && value.find_first_of(" \"=\n\r\t\x1b\x7f") == std::string::npos;
        line +=
            " " + std::string(key) + "=" + (is_plain ? value : "\"" + on_one_line(value) + "\"");
    }
    return line + "\n";
}

}  // namespace

void log_event(std::string_view event, const std::vector<LogField>& fields) {
    Log& log = own_log();
    const std::lock_guard lock(log.mutex);
    std::size_t& written = log.written[std::string(event)];
    if (log.is_silent || written > kMostNamed) {
        log.silent.emplace(event);
        return;
    }
    const std::string line = ++written > kMostNamed
                                 ? line_of("more_left_out", {{"of", std::string(event)}})
                                 : line_of(event, fields);
    std::fwrite(line.data(), 1, line.size(), stderr);
}

void write_log_of(int rank) {
    Log& log = own_log();
    const std::lock_guard lock(log.mutex);
    log.is_silent = rank >= static_cast<int>(kMostNamed);
}

std::vector<std::string> silent_events() {
    Log& log = own_log();
    const std::lock_guard lock(log.mutex);
    return {log.silent.begin(), log.silent.end()};
}

}  // namespace nearstep
