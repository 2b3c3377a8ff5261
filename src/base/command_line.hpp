// Runs other programs.
#pragma once

#include <string>
#include <vector>

namespace nearstep {

struct CommandEnd {
    std::string output;  // standard output, of which more than 16 MiB are left out
    int code = -1;       // 128 and the signal's number for a program that a signal ended

    bool is_success() const { return code == 0; }
};

enum class StandardError { in_output, dropped };

// Quotes a word for a shell, so that the shell reads it as one word whatever its characters are.
std::string quoted_for_shell(const std::string& word);

// Runs a program, found by its name as a shell does, with these arguments and an empty standard
// input, and waits for it. Any thread may call.
CommandEnd run_command(const std::vector<std::string>& words, StandardError errors);

}  // namespace nearstep
