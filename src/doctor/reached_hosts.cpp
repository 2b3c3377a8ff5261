// Runs a command on hosts. Called by the command doctor.
#include "doctor/reached_hosts.hpp"

#include "base/command_line.hpp"
#include "base/error.hpp"
#include "base/wording.hpp"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>

namespace nearstep::doctor {

namespace {

constexpr std::size_t kAtOnce = 256;
constexpr std::size_t kMostShown = 300;  // bytes of what a host said
constexpr const char* kAnswerWithin = "60";
constexpr const char* kFindingsWithin = "600";
constexpr int kTooLate = 124;  // timeout's
constexpr int kKilled = 137;

struct Answer {
    std::optional<HostFacts> facts = {};
    std::string fault = {};
};

CommandEnd run_within(const char* seconds, const std::vector<std::string>& command) {
    std::vector<std::string> words{"timeout", "-k", "5", seconds};
    words.insert(words.end(), command.begin(), command.end());
    return run_command(words, StandardError::in_output);
}

bool is_too_late(const CommandEnd& end) { return end.code == kTooLate || end.code == kKilled; }

std::vector<std::string> lines_of(const std::string& output) {
    std::vector<std::string> lines;
    for (std::size_t begin = 0; begin < output.size();) {
        const std::size_t end = std::min(output.find('\n', begin), output.size());
        lines.push_back(output.substr(begin, end - begin));
        if (lines.back().ends_with('\r')) {  // as ssh ends its lines
            lines.back().pop_back();
        }
        begin = end + 1;
    }
    return lines;
}

// Returns what the program said last, as " (...)"; empty if it said nothing.
std::string last_words(const CommandEnd& end) {
    const std::vector<std::string> lines = lines_of(end.output);
    const auto last = std::find_if(lines.rbegin(), lines.rend(),
                                   [](const std::string& line) { return !line.empty(); });
    return last == lines.rend() ? "" : text(" (", on_one_line(last->substr(0, kMostShown)), ")");
}

Answer ask(const std::string& host, const std::string& remote, const std::string& line) {
    if (is_too_late(run_within(kAnswerWithin, {remote, host, "true"}))) {
        return {.fault = text("host ", host, " did not answer within ", kAnswerWithin,
                              " s: check that it is up and reached by ", remote)};
    }
    const CommandEnd end = run_within(kFindingsWithin, {remote, host, line});
    if (is_too_late(end)) {
        return {.fault = text("host ", host, " has not ended its measurements within ",
                              kFindingsWithin, " s: look for a drive that stands still")};
    }
    if (!end.is_success()) {
        return {.fault =
                    text("host ", host, " could not be asked", last_words(end), ": check that ",
                         remote, " reaches it and that ", std::filesystem::current_path().string(),
                         " and the program are there")};
    }
    for (const std::string& said : lines_of(end.output)) {
        if (said.starts_with(kFindings)) {
            try {
                Answer answer{.facts = host_facts(said.substr(std::string(kFindings).size()))};
                answer.facts->host = host;
                return answer;
            } catch (const Error&) {
                break;
            }
        }
    }
    return {.fault = text("host ", host, " gave no findings that can be read", last_words(end),
                          ": install the same nearstep there, and check what ", remote, " prints")};
}

}  // namespace

void check_host_names(const std::vector<std::string>& hosts) {
    std::set<std::string> seen;
    for (const std::string& host : hosts) {
        const bool is_name =
            !host.empty() && host.front() != '-' && std::ranges::all_of(host, [](char letter) {
                return std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
                       std::string("-._@").find(letter) != std::string::npos;
            });
        if (!is_name || host.ends_with(".toml")) {
            throw ConfigError(text("--write-site: ", on_one_line(host),
                                   " is no name of a host: write the folder, then hosts with "
                                   "blanks between, as in --write-site cluster/mine node1 node2; a "
                                   "config comes before."));
        }
        if (!seen.insert(host).second) {
            throw ConfigError(text("--write-site: host ", host, " is named twice: name it once."));
        }
    }
}

AskedHosts ask_hosts(const std::vector<std::string>& hosts, const std::string& remote,
                     const std::vector<std::string>& command) {
    if (!run_command({"sh", "-c", "command -v \"$0\"", remote}, StandardError::dropped)
             .is_success()) {
        throw ConfigError(text("hosts.remote = \"", remote,
                               "\" is no program: install it, or name another with "
                               "--set hosts.remote=PROGRAM."));
    }
    std::string line = "cd " + quoted_for_shell(std::filesystem::current_path().string()) + " &&";
    for (const std::string& word : command) {
        line += " " + quoted_for_shell(word);
    }
    std::vector<Answer> answers(hosts.size());
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < std::min(hosts.size(), kAtOnce); ++i) {
        threads.emplace_back([&] {
            for (std::size_t at = next++; at < hosts.size(); at = next++) {
                answers[at] = ask(hosts[at], remote, line);
            }
        });
    }
    threads.clear();
    AskedHosts asked;
    for (Answer& answer : answers) {
        if (answer.facts) {
            asked.found.push_back(std::move(*answer.facts));
        } else {
            asked.faults.push_back(std::move(answer.fault));
        }
    }
    return asked;
}

}  // namespace nearstep::doctor
