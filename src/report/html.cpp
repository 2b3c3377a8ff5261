#include "report/html.hpp"

#include <array>
#include <cmath>
#include <cstdio>

namespace nearstep::report {

std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            case '\'':
                out += "&#39;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

std::string formatted(double value, std::string_view format) {
    if (!std::isfinite(value)) {
        return "-";
    }
    const bool is_known = format.size() == 3 && format[0] == '.' && format[1] >= '0' &&
                          format[1] <= '9' &&
                          (format[2] == 'f' || format[2] == 'g' || format[2] == 'e');
    const int digits = is_known ? format[1] - '0' : 4;
    const char kind = is_known ? format[2] : 'g';
    std::array<char, 400> out{};
    const char* pattern = kind == 'f' ? "%.*f" : kind == 'e' ? "%.*e" : "%.*g";
    std::snprintf(out.data(), out.size(), pattern, digits, value);
    return out.data();
}

}  // namespace nearstep::report
