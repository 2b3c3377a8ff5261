// Writes a key's value for messages and printing. Used by config and the model's geometry.
#include "config/value.hpp"

#include <array>
#include <charconv>

namespace nearstep::config {

namespace {

constexpr char kDelete = 0x7F;

std::string escaped(std::string_view text, bool is_quoted) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    std::string out;
    for (const char letter : text) {
        const auto code = static_cast<unsigned char>(letter);
        if (code < ' ' || letter == kDelete) {
            out += "\\u00";
            out += kDigits[code >> 4U];
            out += kDigits[code & 0xFU];
        } else {
            if (is_quoted && (letter == '"' || letter == '\\')) {
                out += '\\';
            }
            out += letter;
        }
    }
    return out;
}

struct ScalarWriter {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return written(value); }
    std::string operator()(const std::string& value) const {
        return written(std::string_view(value));
    }
};

}  // namespace

std::string on_one_line(std::string_view text) { return escaped(text, false); }

std::string written(double number) {
    std::array<char, 64> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    return {digits.data(), end};
}

std::string written(std::string_view text) { return '"' + escaped(text, true) + '"'; }

std::string written(const Scalar& scalar) { return std::visit(ScalarWriter(), scalar); }

std::string written(const Value& value) {
    if (!value.is_list) {
        return written(value.items.front());
    }
    std::string out = "[";
    for (const Scalar& item : value.items) {
        out += (out.size() > 1 ? ", " : "") + written(item);
    }
    return out + ']';
}

}  // namespace nearstep::config
