// Runs other programs through sh and returns their output. Used by config/slurm_grant.cpp and
// doctor/host_check.cpp.
#include "base/command_line.hpp"

#include <array>
#include <cstdio>

namespace nearstep {

namespace {

// Quotes `word` for sh, so that sh reads it as one word whatever its characters are.
std::string quoted(const std::string& word) {
    std::string line = "'";
    for (const char letter : word) {
        line += letter == '\'' ? R"('\'')" : std::string(1, letter);
    }
    return line + "'";
}

}  // namespace

CommandEnd run_command(const std::vector<std::string>& words, StandardError errors) {
    std::string line = "exec";
    for (const std::string& word : words) {
        line += " " + quoted(word);
    }
    line += errors == StandardError::in_output ? " 2>&1" : " 2>/dev/null";
    CommandEnd end;
    FILE* pipe = ::popen(line.c_str(), "r");
    if (pipe == nullptr) {
        return end;
    }
    std::array<char, 4096> piece{};
    while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), pipe)) {
        end.output.append(piece.data(), count);
    }
    end.is_success = ::pclose(pipe) == 0;
    return end;
}

}  // namespace nearstep
