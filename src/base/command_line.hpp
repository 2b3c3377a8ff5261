// Runs other programs.
#pragma once

#include <string>

namespace nearstep {

struct CommandEnd {
    std::string output;  // standard output
    bool is_success = false;
};

// Runs a line for sh and waits for it.
CommandEnd run_line(const std::string& line);

}  // namespace nearstep
