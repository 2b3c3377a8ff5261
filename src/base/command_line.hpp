// Runs other programs.
#pragma once

#include <string>
#include <vector>

namespace nearstep {

struct CommandEnd {
    std::string output;  // standard output
    bool is_success = false;
};

enum class StandardError { in_output, dropped };

// Runs a program, found by its name as a shell does, with these arguments, and waits for it.
CommandEnd run_command(const std::vector<std::string>& words, StandardError errors);

}  // namespace nearstep
