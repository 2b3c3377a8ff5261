// Writes log lines to stderr. Used by csd, store, checkpoint, train/compare.cpp and fpga/host.
#include "base/log.hpp"

#include "base/wording.hpp"

#include <cstdio>

namespace nearstep {

void log_event(std::string_view event, const std::vector<LogField>& fields) {
    std::string line = "nearstep event=" + std::string(event);
    for (const auto& [key, value] : fields) {
        const bool is_plain =
            !value.empty() && value.find_first_of(" \"=\n\r\t\x1b\x7f") == std::string::npos;
        line +=
            " " + std::string(key) + "=" + (is_plain ? value : "\"" + on_one_line(value) + "\"");
    }
    line += "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace nearstep
