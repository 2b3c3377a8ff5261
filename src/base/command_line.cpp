#include "base/command_line.hpp"

#include <array>
#include <cstdio>

namespace nearstep {

CommandEnd run_line(const std::string& line) {
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
