// Runs other programs through sh and returns their output. Used by config/slurm_grant.cpp,
// doctor/host_check.cpp and doctor/reached_hosts.cpp.
#include "base/command_line.hpp"

#include "base/units.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace nearstep {

std::string quoted_for_shell(const std::string& word) {
    std::string line = "'";
    for (const char letter : word) {
        line += letter == '\'' ? R"('\'')" : std::string(1, letter);
    }
    return line + "'";
}

CommandEnd run_command(const std::vector<std::string>& words, StandardError errors) {
    std::string line = "exec";
    for (const std::string& word : words) {
        line += " " + quoted_for_shell(word);
    }
    line += errors == StandardError::in_output ? " </dev/null 2>&1" : " </dev/null 2>/dev/null";
    constexpr std::size_t kMostOutput = 16 * MiB;
    CommandEnd end;
    FILE* pipe = ::popen(line.c_str(), "r");
    if (pipe == nullptr) {
        return end;
    }
    std::array<char, 4096> piece{};
    while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), pipe)) {
        end.output.append(piece.data(), std::min(count, kMostOutput - end.output.size()));
    }
    const int status = ::pclose(pipe);
    end.code = WIFEXITED(status)     ? WEXITSTATUS(status)
               : WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                     : -1;
    return end;
}

}  // namespace nearstep
