// Finds out what kind of terminal stdout is. Used by the reporter.
#include "report/terminal.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace nearstep::report {

namespace {

int columns_of(int file) {
    winsize size{};
    return ::isatty(file) == 1 && ::ioctl(file, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int columns_of_stdout() {
    const int own = columns_of(STDOUT_FILENO);
    if (own > 0 || ::isatty(STDOUT_FILENO) == 0) {
        return own;
    }
    const std::string of_parent = text("/proc/", ::getppid(), "/fd/1");
    const Descriptor opened(::open(of_parent.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
    return opened ? columns_of(opened.get()) : 0;
}

bool is_set(const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && *value != '\0';
}

}  // namespace

Terminal Terminal::of_stdout() {
    if (!is_set("TERM") || std::string_view(std::getenv("TERM")) == "dumb") {
        return {};
    }
    const int columns = columns_of_stdout();
    return {.columns = columns, .has_colours = columns > 0 && !is_set("NO_COLOR")};
}

std::string cut(const std::string& line, int columns) {
    std::size_t end = 0;
    for (int count = 0; end < line.size(); ++end) {
        const bool begins_character = (static_cast<unsigned char>(line[end]) & 0xC0U) != 0x80U;
        if (begins_character && ++count > columns) {
            break;
        }
    }
    return line.substr(0, end);
}

}  // namespace nearstep::report
